"""Each test has a target that runs it, and what a target leaves out it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.tiers import TARGETS, tier, told

ROOT = Path(__file__).parents[1]
MARKED = [set(some) for count in range(4) for some in combinations(TARGETS, count)]
"""Each way in which a test may be marked."""


def selection(target: str) -> str:
    """What a target of the Makefile asks pytest for by `-m`."""
    makefile = (ROOT / "Makefile").read_text()
    rule = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert rule is not None
    (asked,) = re.findall(r'\$\(PYTEST\) -m "([^"]*)"', rule[1])
    return asked


def runs(target: str, markers: set[str]) -> bool:
    return Expression.compile(selection(target)).evaluate(lambda name, /, **_: name in markers)


@pytest.mark.parametrize("markers", MARKED, ids=lambda some: "-".join(sorted(some)) or "none")
def test_one_target_runs_a_test_and_is_the_one_that_is_told(markers):
    ran_by = [target for target in ("test", "test-long", "diagnosis") if runs(target, markers)]
    assert ran_by == [TARGETS.get(tier(markers), "make test").removeprefix("make ")]
    assert runs("check", markers) == (not markers)


def test_ci_runs_all_but_the_wider_cases():
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands[-3:] == ["make check-style", "make test", "make test-long"]


def test_a_target_tells_tests_and_files_it_left_out_and_who_runs_them():
    assert told(Counter({"slow": 2, "files of slow": 3, "long": 9})) == [
        "left out: 2 slow tests and 3 files of slow tests; make test runs them",
        "left out: 9 long tests; make test-long runs them",
    ]
    assert told(Counter()) == []


TESTS = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("n", range(3))
def test_long(n): ...

@pytest.mark.slow
def test_slow(): ...

def test_fast(): ...

def test_another(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_whole_run_tells_it_at_its_end_and_not_what_a_word_left_out(tmp_path, workers):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  long\n")
    asked = [*("-m", selection("test")), *("-k", "not another"), *("-n", str(workers))]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.tiers",
            "-p",
            "no:cacheprovider",
            *asked,
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    *_, before, last = done.stdout.splitlines()
    assert before == "left out: 3 long tests; make test-long runs them"
    assert last.startswith("2 passed")
