"""A folder of slow tests is left out only where none of them could run."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from tests.slow import left_out

OTHERS = ("long", "wide", "gpu", "hypothesis")
MARKED = [{"slow", *some} for count in range(5) for some in combinations(OTHERS, count)]
"""Each way in which a slow test may be marked."""


def is_left_out(asked: str) -> bool | None:
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=asked), stash=pytest.Stash())
    return left_out(Path("test_any.py"), config)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "slow",
        "not wide",
        "not slow",
        "not  slow and not wide",
        "not slow and not wide",
        "not slow and not long and not wide",
        "long and not wide",
        "wide or hypothesis",
        "gpu or wide and not slow",
        "not (not slow)",
        "not slower and gpu",
    ],
)
def test_what_is_left_out_could_not_have_run(asked):
    expression = Expression.compile(asked or "slow")  # without `-m` every test runs
    runs = any(expression.evaluate(lambda name, marks=some: name in marks) for some in MARKED)
    assert not (is_left_out(asked) and runs)


def test_check_imports_no_folder_of_slow_tests_and_test_imports_all():
    assert is_left_out("not slow and not long and not wide")
    assert is_left_out("not long and not wide") is None
