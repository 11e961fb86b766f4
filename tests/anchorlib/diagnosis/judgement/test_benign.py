"""What differs in bits and in no value is told as such, and blames nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import Record
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import floats, record

WEIGHTS = floats(0.5, -1.25, 3.0, 0.0)


def compared(a: list[Record], b: list[Record]) -> Comparison:
    return compare_tables(align(table(a), table(b, run="b")))


def one(raw: Any, step: int = 0, **options: Any) -> Record:
    kind = options.pop("kind", "grad")
    return record("fc1", step, raw, kind=kind, order=step, **options)


def trained(loss: float, step: int) -> list[Record]:
    """A step: a loss, and the gradient that it led to."""
    forward = record("loss", step, floats(loss), kind="value", order=2 * step)
    return [forward, replace(one(WEIGHTS, step), order=2 * step + 1)]


def scaled(factor: float, step: int = 0, wrong: float = 1.0) -> Record:
    made = one(WEIGHTS * np.float32(factor * wrong), step)
    return replace(made, scale=factor)


def test_the_sign_of_zero_alone_is_no_difference_of_values():
    found = compared([one(floats(1.0, 0.0))], [one(floats(1.0, -0.0))])
    assert (found.verdict, found.origins) == ("expected", ())
    assert (found.counts.differing, found.growth[0].differing) == (1, 0)
    assert found.first is not None
    assert found.sentence == "No value differs; one record differs in the sign of zero alone."


@pytest.mark.parametrize(("a", "b"), [(65536.0, 4096.0), (1.0, 1024.0)])
def test_a_loss_scale_that_both_state_is_no_difference_of_values(a, b):
    found = compared([scaled(a, n) for n in range(3)], [scaled(b, n) for n in range(3)])
    assert (found.verdict, found.counts.differing) == ("expected", 3)
    assert "3 records differ by the loss scale alone" in found.sentence


def test_what_differs_beside_the_loss_scale_is_measured_without_it():
    found = compared([scaled(65536.0)], [scaled(4096.0, wrong=1.5)])
    (pair,) = found.pairs()
    assert pair.measure is not None
    assert pair.measure.error_eps * pair.measure.eps == pytest.approx(0.5)
    assert found.verdict != "expected"


def test_what_rounds_to_the_same_values_in_the_coarser_type_differs_in_its_type_alone():
    wide = np.array([0.1, 0.2, 1 / 3], "<f8")
    found = compared([one(wide.astype("<f4"))], [one(wide, dtype="float64")])
    assert found.verdict == "expected"
    assert "in their element type alone" in found.sentence
    beyond = compared([one(wide.astype("<f4"))], [one(wide * (1 + 2.0**-20), dtype="float64")])
    assert beyond.verdict != "expected"


def test_an_overflow_in_the_coarser_type_is_a_difference():
    found = compared(
        [one(np.array([np.inf, 1], "<f2"), dtype="float16")], [one(floats(70000.0, 1.0))]
    )
    assert found.verdict == "unexpected"


def test_what_truly_differs_is_named_beside_what_does_not():
    same = [one(floats(1.0, 0.0), step) for step in range(2)]
    other = [one(floats(1.0, -0.0)), one(floats(2.0, 0.0), 1)]
    found = compared(same, other)
    assert found.first is not None
    assert found.first.place.step == 1
    assert "one record differs in the sign of zero alone" in found.notes
    roles = {pair.place.step: pair.role for pair in found.pairs()}
    assert roles[0] == ""
    assert roles[1] != ""


def test_summaries_alone_never_settle_that_no_value_differs():
    found = compared([one(floats(1.0, 0.0), values=False)], [one(floats(1.0, -0.0), values=False)])
    assert found.verdict == "suspect"


def test_a_loss_that_differs_by_rounding_while_its_gradients_are_equal_is_a_dead_end():
    runs = [[*trained(loss, 0), *trained(loss * 2, 1)] for loss in (1.0, 1.0 + 2.0**-23)]
    found = compared(*runs)
    assert (found.verdict, found.counts.differing) == ("expected", 2)
    assert "nothing that differs follows from it" in found.sentence


def test_a_loss_that_differs_by_more_than_rounding_is_none():
    assert compared(trained(1.0, 0), trained(1.5, 0)).verdict != "expected"


def test_a_loss_whose_gradients_were_not_recorded_is_none():
    found = compared(trained(1.0, 0)[:1], trained(1.0 + 2.0**-23, 0)[:1])
    assert found.verdict == "suspect"
