"""An equal formula in the place of any function raises no alarm in any training; a mistake does."""

from __future__ import annotations

import hashlib

import pytest

from tests.diagnosis import pairs
from tests.diagnosis.substitutes import EQUAL, MISTAKEN, applicable, substituted
from tests.diagnosis.workloads import WORKLOADS

SHARE = 12
"""One of how many workloads is long; the others are wide."""
EACH = 2
"""How many substitutes are tried in a workload."""


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _parameters() -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.wide if _number(name) % SHARE else pytest.mark.long)
        for name in WORKLOADS
    ]


def _verdicts(name: str, names: list[str], store) -> dict[str, str]:
    """Return what compare says of a workload with each of some substitutes: name -> answer."""
    workload = WORKLOADS[name][0]
    chosen = applicable(lambda: pairs.record(workload, 0, "a", store), names)
    chosen.sort(key=lambda one: _number(name + one))
    said = {}
    for number, one in enumerate(chosen[:EACH]):
        with substituted(one) as calls:
            pairs.record(workload, 0, f"b{number}", store)
        assert calls
        answer = pairs.answer("a", f"b{number}", store)
        said[one] = f"{answer.verdict}: {answer.sentence}"
    return said


@pytest.mark.parametrize("name", _parameters())
def test_an_equal_formula_raises_no_alarm(name, tmp_path):
    said = _verdicts(name, list(EQUAL), tmp_path)
    assert not [one for one in said.items() if one[1].startswith("unexpected")]


@pytest.mark.parametrize("name", _parameters())
def test_another_formula_is_never_taken_for_an_equal_one(name, tmp_path):
    """It may stand where data are made, before anything is recorded: then it is `suspect`."""
    said = _verdicts(name, list(MISTAKEN), tmp_path)
    assert not [one for one in said.items() if one[1].startswith("expected")]
