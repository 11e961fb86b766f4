"""A formula that is written otherwise is named by its operations, and nothing else is.

A sample of the table of `python -m tests.diagnosis --operations`.
"""

from __future__ import annotations

import pytest

from tests.diagnosis.rewriting import aligned, layers, outcome


@pytest.mark.parametrize("seed", range(8))
def test_a_formula_that_was_written_otherwise_is_named_and_nothing_else(seed):
    found = outcome(seed, large=False)
    assert (found.named, found.alone) == (True, True), found


@pytest.mark.parametrize("seed", range(4))
def test_the_same_inside_one_large_module(seed):
    found = outcome(seed, large=True, least=10, most=40)
    assert (found.named, found.alone) == (True, True), found


@pytest.mark.parametrize("large", [False, True])
def test_two_equal_nets_differ_in_no_operation(large):
    lines = layers(7, 4, 12)
    found = aligned(lines, lines, 7, large=large)
    assert (found.only_a, found.only_b, found.every) == (0, 0, ())
    assert found.matched > 20
