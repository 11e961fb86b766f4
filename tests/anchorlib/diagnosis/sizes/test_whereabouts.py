"""Which elements differ is said by the indices of each axis."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.sizes.whereabouts import EQUAL, apart, where
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record


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


ARRAYS = npst.arrays(
    st.sampled_from([np.float32, np.float16, np.int16, np.complex64]), st.integers(0, 30)
)


@pytest.mark.slow
@given(ARRAYS, st.data())
def test_exactly_the_elements_with_other_bits_differ(values, data):
    other = values.copy()
    for place in data.draw(st.sets(st.integers(0, max(len(values) - 1, 0)), max_size=len(values))):
        other.view(np.uint8).reshape(len(values), -1)[place, 0] ^= 1
    bits = [one.view(np.uint8).reshape(len(values), values.itemsize) for one in (values, other)]
    expected = (bits[0] != bits[1]).any(axis=1)
    assert ((apart(values, other) != EQUAL) == expected).all()


@given(npst.arrays(bool, st.tuples(st.integers(1, 70))))
def test_the_first_and_the_last_index_that_differ_are_always_said_or_counted(differs):
    places = np.flatnonzero(differs)
    (said,) = where(differs)
    numbers = [int(one) for one in re.findall(r"\d+", said)]
    assert said.startswith(("all", "the only")) == (len(places) == len(differs))
    if 0 < len(places) < len(differs):
        assert places[0] in numbers
        assert "more" in said or places[-1] in numbers


@pytest.mark.parametrize(
    ("change", "kept", "said"),
    [
        (np.s_[12:16], True, "rows 12–15 of 16"),
        (np.s_[:, 3], True, "column 3 of 8"),
        (np.s_[2:4, 1], True, "rows 2–3 of 16, column 1 of 8"),
        (np.s_[:], True, "all"),
        (np.s_[12:16], False, None),
    ],
)
def test_an_origin_says_where_in_the_tensor_it_differs(change, kept, said):
    one = np.ones((16, 8), "<f4")
    two = one.copy()
    two[change] += 1
    tables = [
        table([record("w", 0, raw, kind="value", values=kept)], run=name)
        for name, raw in (("a", one), ("b", two))
    ]
    (origin,) = compare_tables(align(*tables)).to_dict()["origins"]
    assert origin["where"] == said
