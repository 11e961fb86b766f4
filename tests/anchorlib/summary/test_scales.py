"""The scale that `hist --as` suggests, against casts of the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import OptionError
from anchorlib.summary import FORMATS, Log2Histogram, log2_histogram, scales_for, shares_as

EXPONENTS = st.integers(-100, 60)


@st.composite
def values(draw):
    """Numbers of any magnitude, powers of two and their neighbours among them."""
    exponents = draw(st.lists(EXPONENTS, min_size=1, max_size=12))
    parts = draw(st.lists(st.floats(1, 2, exclude_max=True), min_size=12, max_size=12))
    return np.array([np.ldexp(m, e) for m, e in zip(parts, exponents, strict=False)])


@given(values(), st.sampled_from(sorted(FORMATS)))
def test_no_suggested_scale_overflows_and_all_of_them_underflow_equally(array, target):
    found = scales_for(log2_histogram(array), target)
    assert found.low <= found.high
    told = [shares_as(array, target, 2.0**k) for k in {found.low, found.high}]
    assert [one.overflowing for one in told] == [0] * len(told)
    assert len({one.underflowing for one in told}) == 1


@given(values(), st.sampled_from(sorted(FORMATS)), st.integers(-200, 200))
def test_no_power_of_two_that_bins_show_to_be_safe_underflows_less(array, target, k):
    histogram = log2_histogram(array)
    found = scales_for(histogram, target)
    # The largest elements that the bins allow overflow at any larger scale.
    edge = np.nextafter(2.0 ** (max(histogram.bins) + 1), 0)
    if shares_as(np.array([edge]), target, 2.0**k).overflowing:
        assert k > found.high
    else:
        least = shares_as(array, target, 2.0**found.high).underflowing
        assert k <= found.high
        assert shares_as(array, target, 2.0**k).underflowing >= least


@pytest.mark.parametrize(("target", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_torchs_own_casts_agree(target, dtype):
    torch.manual_seed(0)
    x = torch.randn(4096, dtype=torch.float64) * 2.0 ** torch.randint(-45, 0, (4096,))
    found = scales_for(log2_histogram(x), target)
    for k in (found.low, found.high):
        cast = (x.float() * 2.0**k).to(dtype)
        assert torch.isfinite(cast).all()
        assert (cast == 0).double().mean().item() == pytest.approx(found.underflow, abs=1e-3)


def test_gradients_as_small_as_these_want_a_scale():
    # fp16 holds 2^-24 … 65504: elements of 2^-30 need 2^6 at least; 2^-10 bears 2^24.
    found = scales_for(Log2Histogram(bins={-30: 5, -10: 5}), "fp16")
    assert (found.low, found.high, found.underflow) == (6, 24, 0)
    assert found.to_dict() == {"low": 64.0, "high": 2.0**24, "underflow": 0}


def test_where_all_cannot_be_saved_the_range_saves_the_most():
    found = scales_for(Log2Histogram(bins={-60: 10, -20: 30, 5: 60}), "fp16")
    assert (found.low, found.high, found.underflow) == (-4, 9, 0.1)


def test_a_bin_on_the_limit_leaves_one_scale():
    found = scales_for(Log2Histogram(bins={-25: 1, 14: 1}), "fp16")
    assert found.low == found.high == 0


def test_nothing_to_scale_is_no_suggestion_and_another_format_is_refused():
    assert scales_for(Log2Histogram(zero=3, nan=1), "fp16") is None
    assert scales_for(Log2Histogram(inf=3), "fp16") is None
    with pytest.raises(OptionError):
        scales_for(Log2Histogram(), "fp15")


def test_the_ends_of_float64_are_no_overflow_of_ours():
    low = scales_for(log2_histogram(np.array([5e-324])), "bf16")
    high = scales_for(log2_histogram(np.array([1.7e308])), "e4m3")
    assert np.isfinite([2.0**low.high, 2.0**low.low, 2.0**high.low, 2.0**high.high]).all()
    assert low.low <= low.high
