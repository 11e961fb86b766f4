"""Summaries of many records as columns: what `summarise` says of each, bit for bit."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import UnknownDTypeError
from anchorlib.summary import ArraySummary, Log2Histogram, columns, figures_of, summarise
from tests import oracle
from tests.seeds import examples
from tests.strategies import stored

pytestmark = pytest.mark.usefixtures("path_taken")


def summaries(arrays: list[tuple[np.ndarray, str]]) -> list[ArraySummary]:
    """The columns of these arrays, read back as one ArraySummary a record."""
    layouts = list(dict.fromkeys((name, raw.size) for raw, name in arrays))
    layout = np.array([layouts.index((name, raw.size)) for raw, name in arrays], np.int64)
    found = figures_of([raw.tobytes() for raw, _ in arrays], layout, layouts)
    ends = np.cumsum(found.columns["bins"]).tolist()
    read = []
    for row in range(len(arrays)):
        at = {name: column[row].item() for name, column in found.columns.items()}
        pairs = slice(ends[row] - at["bins"], ends[row])
        histogram = Log2Histogram.from_pairs(
            found.exponents[pairs],
            found.elements[pairs],
            zero=at["zero"],
            nan=at["nan"],
            inf=at["inf"],
            subnormal=at["subnormal"],
        )
        digest = found.digest[row].tobytes()
        read.append(ArraySummary(digest, at["min"], at["max"], at["sum"], at["l2"], histogram))
    return read


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.lists(stored(), max_size=12), st.booleans(), st.sampled_from([1, 7, 256]))
def test_columns_say_of_each_array_what_it_says_by_itself(arrays, flush, together):
    with (
        patch.object(columns, "FEW", 0),
        patch.object(columns, "TOGETHER", together),
        oracle.flushing(flush),
    ):
        assert summaries(arrays) == [summarise(*array) for array in arrays]


@pytest.mark.parametrize("size", [1, 3, 8, 9, 64, 129, 1000, 4096])
def test_sums_of_many_sizes_agree_to_the_last_bit(size):
    rng = np.random.default_rng(size)
    arrays = [
        ((rng.standard_normal(n) * 2.0 ** rng.integers(-30, 30)).astype("<f4"), "float32")
        for n in (size, size, size + 1, size, 2 * size, size)
    ]
    assert summaries(arrays) == [summarise(*array) for array in arrays]


def test_blocks_are_never_longer_than_what_they_are_summarised_in():
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(4000).astype(np.complex64), "complex64") for _ in range(40)]
    assert summaries(arrays) == [summarise(*array) for array in arrays]


def test_no_array_gives_empty_columns():
    found = figures_of([], np.empty(0, np.int64), [])
    assert found.digest.shape == (0, 2)
    assert {len(column) for column in found.columns.values()} == {0}


def test_a_name_that_is_no_dtype_is_refused():
    with pytest.raises(UnknownDTypeError, match="float31"):
        figures_of([b"\0" * 4], np.zeros(1, np.int64), [("float31", 1)])
