"""Histograms add up, and travel as JSON, columns and pickles."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.summary import Log2Histogram, log2_histogram
from tests.strategies import dtype_names, storage_arrays

pytestmark = pytest.mark.usefixtures("path_taken")

ONE = Log2Histogram({-3: 2, 5: 1}, zero=4, nan=3, inf=2, subnormal=1)


@st.composite
def two_of_one_type(draw):
    name = draw(dtype_names())
    return name, draw(storage_arrays(name)).reshape(-1), draw(storage_arrays(name)).reshape(-1)


@pytest.mark.slow
@given(two_of_one_type())
def test_the_histogram_of_two_arrays_is_the_sum_of_theirs(arrays):
    name, first, second = arrays
    together = log2_histogram(np.concatenate((first, second)), name)
    total = log2_histogram(first, name) + log2_histogram(second, name)
    assert total == together
    assert list(total.bins) == list(together.bins) == sorted(together.bins)
    assert (
        total.numel
        == together.numel
        == log2_histogram(second, name).numel + (log2_histogram(first, name).numel)
    )


@pytest.mark.slow
@given(st.lists(storage_arrays("float16"), max_size=5))
def test_pooling_is_adding_one_by_one(arrays):
    histograms = [log2_histogram(array) for array in arrays]
    assert Log2Histogram.pooled(histograms) == sum(histograms, Log2Histogram())


def test_an_empty_histogram_is_neutral():
    assert ONE + Log2Histogram() == ONE == Log2Histogram() + ONE
    assert Log2Histogram().numel == Log2Histogram().count == 0


def test_only_histograms_are_added():
    with pytest.raises(TypeError):
        ONE + 1


def test_count_and_numel():
    assert ONE.count == 3
    assert ONE.numel == 3 + 4 + 3 + 2


def test_it_is_frozen_and_equal_by_value():
    with pytest.raises(FrozenInstanceError):
        ONE.zero = 3  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(ONE))
    assert again == ONE
    assert hash(again) == hash(ONE)
    assert Log2Histogram({-3: 1, 5: 1}, zero=4, nan=3, inf=2, subnormal=1) != ONE


def test_json_has_the_contracts_fields():
    assert json.loads(json.dumps(ONE.to_dict())) == {
        "numel": 12,
        "count": 3,
        "zero": 4,
        "nan": 3,
        "inf": 2,
        "subnormal": 1,
        "bins": {"-3": 2, "5": 1},
    }


@pytest.mark.parametrize("form", ["list", "int16", "uint64"])
def test_it_is_built_from_stored_pairs(form):
    def make(values):
        return values if form == "list" else np.array(values, form)

    built = Log2Histogram.from_pairs(make([3, 5]), make([2, 1]), zero=4, nan=3, inf=2, subnormal=1)
    assert built == Log2Histogram({3: 2, 5: 1}, zero=4, nan=3, inf=2, subnormal=1)
    assert all(type(number) is int for pair in built.bins.items() for number in pair)


def test_pairs_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="zip"):
        Log2Histogram.from_pairs([1, 2], [3])


def test_counts_are_python_integers():
    histogram = log2_histogram(np.array([1.0, 0.0, 1e-310, np.nan, np.inf]))
    numbers = [*histogram.bins, *histogram.bins.values(), histogram.zero, histogram.nan]
    numbers += [histogram.inf, histogram.subnormal, histogram.count, histogram.numel]
    assert all(type(number) is int for number in numbers)
