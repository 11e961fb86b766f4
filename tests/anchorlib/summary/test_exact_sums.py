"""Exact sums are rounded once, whatever the order and the parts in which numbers are added."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anchorlib.summary.exact_sums import ExactSums

floats = st.floats(width=64)
numbers = st.lists(st.tuples(st.integers(0, 2), floats), max_size=20)


def of(drawn, make=ExactSums.of):
    cells = np.array([cell for cell, _ in drawn], np.int64)
    return make(cells, np.array([value for _, value in drawn], np.float64))


def same(a, b):
    return np.array_equal(a.keys, b.keys) and np.array_equal(a.counts, b.counts)


@pytest.mark.slow
@given(numbers, st.randoms())
def test_no_order_and_no_parting_changes_a_sum(drawn, random):
    for make in (ExactSums.of, ExactSums.of_squares):
        whole = of(drawn, make)
        shuffled = random.sample(drawn, len(drawn))
        at = random.randint(0, len(drawn))
        assert same(ExactSums.pooled([of(shuffled[:at], make), of(shuffled[at:], make)]), whole)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
@example([1.0, -8.988465674311579e307, -8.98846567431158e307])
def test_a_sum_is_rounded_once(values):
    """`math.fsum` cannot say so: it gives up where a part of the sum alone overflows."""
    drawn = [(1, value) for value in values]
    exact = sum(map(Fraction, values))
    try:
        expected = float(exact)
    except OverflowError:
        expected = math.inf if exact > 0 else -math.inf
    assert of(drawn).rounded(2).tolist() == [0.0, expected]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_a_root_is_the_nearest_float(values):
    found = of([(0, value) for value in values], ExactSums.of_squares).roots(1)[0]
    squared = sum(Fraction(value) ** 2 for value in values)
    if math.isinf(found):
        assert squared > Fraction(math.nextafter(math.inf, 0)) ** 2
        return
    below, above = (
        (
            Fraction(math.nextafter(found, to))
            for to in (0, math.inf)
            if math.isfinite(math.nextafter(found, to))
        )
        if found < 1.7e308
        else (Fraction(found), Fraction(found) * 2)
    )
    assert ((below + Fraction(found)) / 2) ** 2 <= squared <= ((above + Fraction(found)) / 2) ** 2


@pytest.mark.slow
@given(floats)
def test_one_number_is_its_own_sum_and_root(value):
    one = [(0, value)]
    np.testing.assert_array_equal(of(one).rounded(1), [value + 0.0])
    np.testing.assert_array_equal(of(one, ExactSums.of_squares).roots(1), [abs(value)])


def test_what_is_not_finite_is_added_as_floats_are():
    for values in ([np.inf, 1.0], [-np.inf, 1.0], [np.inf, -np.inf], [np.nan, 1.0]):
        with np.errstate(invalid="ignore"):
            expected = np.sum(values)
        np.testing.assert_array_equal(of([(0, one) for one in values]).rounded(1), [expected])
