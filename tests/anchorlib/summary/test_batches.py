"""Many small arrays summarised at once: what `summarise` says of each, bit for bit."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import UnknownDTypeError
from anchorlib.summary import batches, summarise, summarise_all
from tests import oracle
from tests.strategies import stored

pytestmark = pytest.mark.usefixtures("path_taken")


@settings(max_examples=300)
@given(st.lists(stored(), max_size=12), st.booleans(), st.sampled_from([1, 7, 256]))
def test_a_batch_says_what_each_array_alone_says(arrays, flush, together):
    with (
        patch.object(batches, "FEW", 0),
        patch.object(batches, "TOGETHER", together),
        oracle.flushing(flush),
    ):
        assert summarise_all(arrays) == [summarise(*array) for array in arrays]


@pytest.mark.parametrize("size", [1, 3, 8, 9, 64, 129, 1000, 4096])
def test_sums_of_many_sizes_agree_to_the_last_bit(size):
    rng = np.random.default_rng(size)
    arrays = [
        ((rng.standard_normal(n) * 2.0 ** rng.integers(-30, 30)).astype("<f4"), "float32")
        for n in (size, size, size + 1, size, 2 * size, size)
    ]
    assert summarise_all(arrays) == [summarise(*array) for array in arrays]


def test_views_and_shapes_are_summarised_as_they_are_read():
    square = np.arange(36, dtype="<f4").reshape(6, 6)
    arrays = [(square.T, "float32"), (square[::2], "float32"), (square[0, :1], "float32")] * 2
    assert summarise_all(arrays) == [summarise(*array) for array in arrays]


def test_what_is_not_the_dtypes_storage_is_refused():
    right = (np.zeros(4, "<f4"), "float32")
    with pytest.raises(UnknownDTypeError, match="float32 is stored as"):
        summarise_all([right, right, right, right, (np.zeros(4, "<f8"), "float32")])
