"""Where in a tensor two runs differ: the indices of each axis, and a picture that hides none."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from anchorlib.reading import open_run
from anchorlib.report.contrasting import EQUAL, NONFINITE, contrast
from anchorlib.report.footprint import SIDE, apart, where
from anchorlib.report.gathering import gather
from anchorlib.report.values import Budget
from tests.anchorlib.report.compared import compared
from tests.cli.made import make_run, record


def found(store, one, two, budget=None):
    """The footprint of the first difference of two runs of one record."""
    for name, raw in (("a", one), ("b", two)):
        make_run(store, [record("w", "value", raw)], name)
    a, b = open_run("a", store), open_run("b", store)
    told = contrast(compared(a, b), gather(a), gather(b), 1, budget=budget)
    return told.footprints[0] if told.footprints else None


def test_rows_that_differ_are_named_by_their_range(tmp_path):
    values = np.ones((16, 8), np.float32)
    other = values.copy()
    other[12:16] += 1
    one = found(tmp_path, values, other)
    assert one.axes == ["rows 12–15 of 16", "all 8 columns"]
    assert one.picture.shape == (16, 8)
    assert (one.picture[:12] == EQUAL).all()
    assert (one.picture[12:] == 1).all()


def test_of_many_axes_each_is_told_by_its_number(tmp_path):
    values = np.zeros((4, 3, 2, 2), np.float32)
    other = values.copy()
    other[1, 2] = 5
    one = found(tmp_path, values, other)
    assert one.axes[:2] == ["axis 0 index 1 of 4", "axis 1 index 2 of 3"]
    assert one.shape in ((4, 12), (12, 4))


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([3], "element 3 of 40"),
        ([0, 4, 5, 6], "elements 0 and 4–6 of 40"),
        (range(1, 33, 2), "elements 1 to 31 by 2 of 40"),
        ([0, 2, 3, 6, 8, 11, 15, 20, 26], "elements 0, 2–3, 6, 8, 11, 15 and 2 more of 40"),
        (range(40), "all 40 elements"),
    ],
)
def test_the_indices_of_an_axis_are_told_shortly(places, said):
    differs = np.zeros(40, bool)
    differs[list(places)] = True
    assert where(differs) == [said]


def test_a_large_tensor_is_drawn_small_and_no_difference_is_lost(tmp_path):
    values = np.zeros((500, 300), np.float32)
    other = values.copy()
    other[499, 299] = np.float32(1e-30)
    other[0, 0] = np.nan
    one = found(tmp_path, values, other)
    assert one.shape == (500, 300)
    assert one.picture.shape == (SIDE, SIDE)
    assert one.picture[0, 0] == NONFINITE
    assert one.picture[-1, -1] == pytest.approx(1e-30)
    assert np.count_nonzero(one.picture != EQUAL) == 2


def test_what_the_budget_does_not_allow_is_left_out(tmp_path):
    values = np.zeros((4, 4), np.float32)
    assert found(tmp_path, values, values + 1, Budget(footprint_elements=15)) is None


def test_a_scalar_has_no_axis(tmp_path):
    one = found(tmp_path, np.float32(1), np.float32(2))
    assert one.axes == []
    assert one.picture.tolist() == [[1.0]]


ARRAYS = npst.arrays(
    st.sampled_from([np.float32, np.float16, np.int16, np.complex64]), st.integers(0, 30)
)


@settings(deadline=None)
@given(ARRAYS, st.data())
def test_exactly_the_elements_with_other_bits_differ(values, data):
    other = values.copy()
    for place in data.draw(st.sets(st.integers(0, max(len(values) - 1, 0)), max_size=len(values))):
        other.view(np.uint8).reshape(len(values), -1)[place, 0] ^= 1
    bits = [one.view(np.uint8).reshape(len(values), values.itemsize) for one in (values, other)]
    expected = (bits[0] != bits[1]).any(axis=1)
    assert ((apart(values, other) != EQUAL) == expected).all()


@settings(deadline=None)
@given(npst.arrays(bool, st.tuples(st.integers(1, 70))))
def test_the_first_and_the_last_index_that_differ_are_always_said_or_counted(differs):
    places = np.flatnonzero(differs)
    (said,) = where(differs)
    numbers = [int(one) for one in re.findall(r"\d+", said)]
    assert said.startswith(("all", "the only")) == (len(places) == len(differs))
    if 0 < len(places) < len(differs):
        assert places[0] in numbers
        assert "more" in said or places[-1] in numbers
