"""Gradients of which one run saw a part alone: neither faults nor excuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from tests.anchorlib.diagnosis.histories import History, told

NAMES = ("x", "a", "b", "c")
BUG, ROUND = 1e-3, 1e-7
LEARNT = {name: {f"w_{name}@pass_grad": BUG} for name in NAMES[1:]}
"""For each tensor, what its gradient changes. A fault that changes none is none."""


def judged(
    changes: Mapping[str, Any], stated: Sequence[str] = ("b",), *, names: Sequence[str] = ()
) -> Comparison:
    """Two steps of a chain against the same with changes, in a run that states partial gradients.

    names: the tensors of which both runs have records; all where none is given.
    """
    run = History()
    run.chain(*NAMES)
    for step in range(2):
        run.passes(*NAMES, step=step)
        run.optimizer(*NAMES, step=step)
    run.records = [one for one in run.records if not names or one.name in names]
    header = {0: {"grad.from_outside": list(stated)}}
    return compare_tables(align(run.table(), replace(run.table(changes, "b"), header=header)))


def test_a_part_of_a_gradient_is_no_difference_of_what_follows():
    found = judged({"b@grad": BUG})
    assert (found.verdict, found.incomplete, told(found)) == ("expected", False, [])
    assert found.counts.differing == 2


def test_a_gradient_that_neither_run_says_to_be_a_part_is_judged():
    found = judged({"b@grad": BUG} | LEARNT["b"], stated=())
    assert (found.verdict, told(found)) == ("unexpected", ["not_rounding b@grad 0 0"])


def test_a_value_of_that_name_is_judged():
    found = judged({"b@value": BUG, "b@grad": BUG} | LEARNT["c"])
    assert (found.verdict, told(found)) == ("unexpected", ["not_rounding b@value 0 0"])


@pytest.mark.parametrize("place", ["a@grad", "w_b@pass_grad", "c@grad", "w_a@updated"])
def test_a_fault_beside_a_part_is_named(place):
    found = judged({"b@grad": BUG, place: BUG} | LEARNT.get(place.removesuffix("@grad"), {}))
    assert found.verdict == "unexpected"
    assert told(found)[0] == f"not_rounding {place} 0 0"


def test_what_was_computed_from_a_part_says_that_it_depends_on_it():
    found = judged({"b@grad": BUG, "a@grad": ROUND})
    assert (found.verdict, told(found)) == ("suspect", ["rounding a@grad 0 0"])
    assert (found.incomplete, found.origins[0].orphaned) == (True, True)
    assert not judged({"b@grad": BUG, "c@grad": ROUND}).incomplete


def test_where_nothing_that_follows_was_compared_the_part_leaves_the_answer_open():
    found = judged({"b@grad": BUG}, names=["b", "c"])
    assert (found.verdict, found.incomplete) == ("suspect", True)
    assert "what follows from them was not recorded in both" in found.sentence
