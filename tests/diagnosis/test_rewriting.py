"""A formula that is written otherwise is named by its operations, and nothing else is.

A sample of the table of `python -m tests.diagnosis --operations`.
"""

from __future__ import annotations

import pytest

from anchorlib.operations import OpForm
from tests.diagnosis import operations
from tests.diagnosis.decompositions import exact, traced


@pytest.mark.slow
@pytest.mark.parametrize(
    ("large", "seeds"),
    [(False, range(6)), pytest.param(True, range(3), marks=pytest.mark.slow)],
)
def test_what_is_said_of_operations_holds_on_a_sample(large, seeds):
    found = operations.scores(seeds, large=large)
    assert len(found) == 6
    for score in found:
        assert score.of
        assert not score.missed, score


@pytest.mark.parametrize("name", ["coder", pytest.param("actor", marks=pytest.mark.slow)])
def test_what_a_module_ran_has_it_in_the_backward_of_a_whole_training(name):
    inside, every, lines, alone = operations.of_trainings([name])
    assert not inside.missed, inside
    assert not lines.missed, lines
    assert (every.count, every.of) == (alone.count, alone.of)
    assert inside.of < every.of, "the loss is taken of functions"


@pytest.mark.skipif("origin" not in OpForm._fields, reason="operations of graphs have no origin")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["native_layer_norm", pytest.param("tanh_backward", marks=pytest.mark.wide)]
)
def test_what_one_table_of_decompositions_takes_apart_is_named_with_its_module(name):
    assert exact(name, traced())
