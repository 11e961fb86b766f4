"""Where in a tensor two runs differ: the indices of each axis, and a picture that hides none."""

from __future__ import annotations

import numpy as np
import pytest

from anchorlib.reading import open_run
from anchorlib.report.comparison_view import EQUAL, NONFINITE, view_of_comparison
from anchorlib.report.footprint import SIDE
from anchorlib.report.gathering import gather
from anchorlib.report.run_view import PageBudget
from tests.anchorlib.report.compared import compared
from tests.cli.made import make_run, record


def found(store, one, two, budget=None):
    """The footprint of the first difference of two runs of one record."""
    for name, raw in (("a", one), ("b", two)):
        make_run(store, [record("w", "value", raw)], name)
    a, b = open_run("a", store), open_run("b", store)
    told = view_of_comparison(compared(a, b), gather(a), gather(b), 1, budget=budget)
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
    assert found(tmp_path, values, values + 1, PageBudget(footprint_elements=15)) is None


def test_a_scalar_has_no_axis(tmp_path):
    one = found(tmp_path, np.float32(1), np.float32(2))
    assert one.axes == []
    assert one.picture.tolist() == [[1.0]]
