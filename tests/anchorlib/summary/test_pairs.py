"""Exponents counted two at a time are those counted one by one, whatever stands among them."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.summary import exponent_counts, log2_histogram, summarise
from anchorlib.summary.float_bits import CHUNK
from anchorlib.summary.pairs import PAIRED, counts_of_pairs
from tests import oracle
from tests.seeds import examples

pytestmark = [
    pytest.mark.usefixtures("path_taken"),
    pytest.mark.parametrize("path_taken", ["numpy"], indirect=True),
]

ODD = {
    "nan": np.nan,
    "inf": -np.inf,
    "subnormal": -1e-42,
    "minus zero": -0.0,
    "zero": 0.0,
    "smallest normal": 2.0**-126,
    "largest": -3.4028234663852886e38,
}


def values(size, seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype("<f4")


def one_by_one(raw):
    with patch.object(exponent_counts, "PAIRED", raw.size + 1):
        return summarise(raw, "float32")


@pytest.mark.parametrize("size", [PAIRED, PAIRED + 1, CHUNK - 1, CHUNK + PAIRED + 1, 2 * CHUNK])
@pytest.mark.parametrize("odd", [None, *ODD])
def test_pairs_count_what_single_elements_count(size, odd):
    raw = values(size)
    if odd is not None:
        raw[[3, size // 2, size - 1]] = ODD[odd]
    assert summarise(raw, "float32") == one_by_one(raw)
    assert log2_histogram(raw) == summarise(raw, "float32").histogram


@pytest.mark.parametrize("odd", list(ODD))
def test_a_thread_that_flushes_subnormals_counts_the_same(odd):
    raw = values(PAIRED + 1)
    raw[::7] = ODD[odd]
    with oracle.flushing(True):
        assert summarise(raw, "float32") == one_by_one(raw)


def test_arrays_of_zeros_alone_have_no_exponents():
    assert log2_histogram(np.zeros(PAIRED, "<f4")).zero == PAIRED
    assert log2_histogram(np.zeros(PAIRED, "<f4")).bins == {}


@settings(max_examples=examples(50))
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_every_pattern_is_counted_by_its_exponent_field(patterns):
    raw = np.array(patterns, "<u4")
    fields = [(pattern >> 23) & 0xFF for pattern in patterns]
    assert (
        counts_of_pairs(raw).tolist() == np.bincount(np.array(fields, int), minlength=256).tolist()
    )
