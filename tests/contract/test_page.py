"""docs/contract.md names the test that bears each sentence; every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contract.md"
ROWS = [
    line.strip("|").split(" | ")
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| sentence")
]


def test_every_sentence_has_a_test_or_an_issue():
    assert len(ROWS) > 150
    for row in ROWS:
        assert len(row) == 2, row
        assert row[1].startswith(("`", "later: ")), row


FILES = sorted({row[1].strip("` ").partition("::")[0] for row in ROWS if "::" in row[1]})


@pytest.mark.parametrize("file", FILES)
def test_every_test_on_the_page_exists(file):
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    named = [row[1].strip("` ").partition("::")[2] for row in ROWS if f"`{file}::" in row[1]]
    assert named
    for name in named:
        assert re.search(rf"^ *def {re.escape(name)}\(", text, re.MULTILINE), f"{file}::{name}"


def is_long(test: str) -> bool:
    """Whether every case of a test is left out of `make test`."""
    file, _, name = test.partition("::")
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    return bool(re.search(rf"@pytest\.mark\.long\n(@.*\n)*def {re.escape(name)}\(", text))


def test_no_sentence_rests_on_long_tests_alone():
    named = {row[0]: re.findall(r"`([^`]+\.py::\w+)`", row[1]) for row in ROWS}
    assert [words for words, tests in named.items() if tests and all(map(is_long, tests))] == []
    assert is_long(
        "anchorlib/capture/test_harmless.py::test_twelve_thousand_steps_leave_memory_flat"
    )
