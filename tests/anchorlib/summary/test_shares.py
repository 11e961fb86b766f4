"""Where elements land in a narrower float: against casts, and against fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.dtypes import DTYPES
from anchorlib.errors import OptionError
from anchorlib.summary import FORMATS, Log2Histogram, Shares, log2_histogram, shares_as
from tests import oracle
from tests.seeds import examples
from tests.strategies import storage_arrays, stored

TARGETS = [
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
]


def counts(shares: Shares) -> tuple[int, float, float, float]:
    return shares.count, shares.underflowing, shares.subnormals, shares.overflowing


def cast(values: np.ndarray, target: str) -> tuple[int, int, int, int]:
    """How ml_dtypes (for float16, torch) casts the float32 values but zeros and NaN.

    Not torch for all: its cast to float8_e4m3fn makes 448 of everything beyond, inf too.
    """
    values = values[~np.isnan(values) & (values != 0)]
    if target == "float16":
        rounded = torch.from_numpy(values).to(torch.float16).float().numpy()
    else:
        with np.errstate(all="ignore"):
            rounded = values.astype(getattr(ml_dtypes, target)).astype(np.float32)
    magnitude = np.abs(rounded)
    normal = 2.0 ** DTYPES[target].smallest_normal_exponent
    return (
        len(values),
        int((magnitude == 0).sum()),
        int(((magnitude > 0) & (magnitude < normal)).sum()),
        int((~np.isfinite(rounded)).sum()),
    )


def limits_of(target: str) -> np.ndarray:
    """float32 values at, just below and just above everything where the rounding turns."""
    kind = DTYPES[target]
    normal = 2.0**kind.smallest_normal_exponent
    smallest = normal * kind.eps
    step = kind.eps * 2.0 ** math.floor(math.log2(kind.max))
    edges = [smallest / 2, smallest, 1.5 * smallest, normal - smallest / 2, normal]
    edges += [kind.max, kind.max + step / 2]
    if target != "bfloat16":  # there it is beyond float32 as well
        edges.append(kind.max + step)
    values = np.array([*edges, *(-edge for edge in edges)], np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.concatenate((values, np.nextafter(values, up), np.nextafter(values, down)))


@pytest.mark.parametrize("target", TARGETS)
def test_each_limit_is_where_the_rounding_turns(target):
    for value in limits_of(target):
        one = np.array([value], np.float32)
        assert counts(shares_as(one, target)) == cast(one, target), value


@pytest.mark.slow
@given(storage_arrays("float32"), st.sampled_from(TARGETS))
@settings(max_examples=examples(200))
def test_any_float32_lands_where_it_is_cast_to(raw, target):
    assert counts(shares_as(raw, target)) == cast(raw.reshape(-1), target)


@pytest.mark.parametrize("target", TARGETS)
def test_every_float16_lands_where_it_is_cast_to(target):
    raw = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        wide = raw.astype(np.float32)
    assert counts(shares_as(raw, target)) == cast(wide, target)


def landed(values, target: str, scale: float) -> tuple[int, int, int, int]:
    """The same from fractions, for any scale."""
    kind = DTYPES[target]
    normal = Fraction(2) ** kind.smallest_normal_exponent
    half = normal * Fraction(kind.eps) / 2
    top = Fraction(kind.max)
    step = Fraction(kind.eps) * Fraction(2) ** (len(bin(int(top))) - 3)
    tie_goes_up = (top / step) % 2 == 1
    infinite = sum(map(math.isinf, values))
    exact = [abs(Fraction(v)) * Fraction(scale) for v in values if math.isfinite(v) and v != 0]
    over = [y for y in exact if y > top + step / 2 or (tie_goes_up and y == top + step / 2)]
    under = [y for y in exact if y <= half]
    small = sum(half < y < normal - half for y in exact)
    return len(exact) + infinite, len(under), small, len(over) + infinite


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "scale",
    [
        *(3.0, 1e-3, 2.0**-7),
        *(pytest.param(scale, marks=pytest.mark.wide) for scale in (0.1, 65535.0, 1e4, 5.0)),
    ],
)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_a_scale_of_any_value_is_exact_at_the_limits(target, scale, name):
    around = [limit / scale for limit in limits_of(target).astype(np.float64)]
    values = [factor * x for x in around for factor in (0.75, 0.875, 1.0, 1.125, 1.25, 1.5)]
    with np.errstate(all="ignore"):
        exact = np.array(values).astype(name)
        exact = np.concatenate((exact, np.nextafter(exact, np.array(0, name)), exact * 2))
    for value in exact:
        one = np.array([value])
        assert counts(shares_as(one, target, scale)) == landed(one.tolist(), target, scale), value


scales = st.one_of(
    st.integers(-160, 160).map(lambda e: 2.0**e),
    st.floats(2.3e-308, 1.7e308),
    st.sampled_from([1.0, 3.0, 0.1, 65536.0, 1e4]),
)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(stored(), st.sampled_from([*TARGETS, "float32", "float64"]), scales, st.booleans())
def test_any_type_and_scale_lands_where_fractions_say(array, target, scale, flush):
    raw, name = array
    with oracle.flushing(flush):
        found = shares_as(raw, target, scale, dtype=name)
    assert counts(found) == landed(oracle.numbers(raw, name), target, scale)
    assert found.exact


@given(st.integers(-20, 20), st.sampled_from(sorted(FORMATS)))
def test_a_scale_of_two_to_the_n_is_as_multiplying_by_it(power, target):
    values = np.random.default_rng(power + 20).standard_normal(500) * 2.0**-8
    assert counts(shares_as(values, target, 2.0**power)) == counts(
        shares_as(values * 2.0**power, target)
    )


def test_the_short_names_stand_for_torchs():
    values = np.random.default_rng(0).standard_normal(2000) * 2.0**-14
    for short, name in FORMATS.items():
        assert shares_as(values, short) == shares_as(values, name)
    assert set(FORMATS) == {"fp16", "bf16", "e4m3", "e5m2"}


def test_a_loss_scale_saves_gradients_from_underflow():
    gradient = np.full(100, 2.0**-26, np.float32)
    assert shares_as(gradient, "fp16").underflow == 1
    saved = shares_as(gradient, "fp16", 65536.0)
    assert (saved.underflow, saved.subnormal_as, saved.overflow) == (0, 0, 0)
    assert shares_as(gradient, "fp16", 2.0**42).overflow == 1
    assert shares_as(gradient, "fp16", 2.0**6).subnormal_as == 1


def test_infinities_are_overflow_and_what_is_nan_has_no_share():
    values = np.array([np.inf, -np.inf, np.nan, 0.0, 1.0])
    for target in ("fp16", "float32", "float64"):
        for source in (values, log2_histogram(values)):
            assert counts(shares_as(source, target)) == (3, 0, 0, 2)
            assert counts(shares_as(source, target, 2.0**-9)) == (3, 0, 0, 2)
    nothing = shares_as(values[2:4], "fp16")
    assert (nothing.underflow, nothing.subnormal_as, nothing.overflow) == (0, 0, 0)


def test_saturating_is_overflow_too():
    # torch casts to float8_e4m3fn without inf: the value is lost all the same.
    assert torch.tensor(1e6).to(torch.float8_e4m3fn).float() == 448
    assert shares_as([1e6], "e4m3").overflow == 1


def test_a_tie_at_the_top_stays_only_where_the_largest_value_is_even():
    assert shares_as([464.0], "e4m3").overflow == 0
    assert shares_as([math.nextafter(464.0, 500)], "e4m3").overflow == 1
    assert shares_as([65520.0], "fp16").overflow == 1
    assert shares_as([math.nextafter(65520.0, 0)], "fp16").overflow == 0
    assert shares_as([61440.0], "e5m2").overflow == 1


@pytest.mark.slow
@given(stored(), st.integers(-30, 30), st.sampled_from(sorted(FORMATS)))
def test_a_histogram_says_the_same_wherever_it_says_that_it_is_exact(array, power, target):
    raw, name = array
    values = shares_as(raw, target, 2.0**power, dtype=name)
    binned = shares_as(log2_histogram(raw, name), target, 2.0**power)
    assert binned.count == values.count
    if binned.exact:
        assert counts(binned) == counts(values)


def test_whole_bins_of_a_histogram_are_exact():
    histogram = Log2Histogram({-30: 1, -26: 2, -20: 4, 3: 8, 17: 16})
    shares = shares_as(histogram, "fp16")
    assert counts(shares) == (31, 3, 4, 16)
    assert shares.exact
    assert counts(shares_as(histogram, "fp16", 0.5)) == (31, 3, 4, 16)
    assert counts(shares_as(histogram, "fp16", 2.0**-1)) == (31, 3, 4, 16)


def test_a_bin_that_a_limit_cuts_is_split_evenly_and_says_so():
    top = shares_as(Log2Histogram({8: 256}), "e4m3")  # 256 … 512, cut at 464
    assert counts(top) == (256, 0, 0, 48)
    assert not top.exact
    scaled = shares_as(Log2Histogram({-25: 4}), "fp16", 0.75)  # 0.75 … 1.5 times 2**-25
    assert scaled.underflowing == pytest.approx(4 / 3)
    assert scaled.subnormals == pytest.approx(8 / 3)
    assert not scaled.exact


def test_a_bin_whose_lower_edge_underflows_is_not_exact():
    shares = shares_as(Log2Histogram({-25: 1}), "fp16")
    assert counts(shares) == (1, 0, 1, 0)
    assert not shares.exact
    assert shares_as([2.0**-25], "fp16").underflow == 1


@pytest.mark.slow
@given(st.lists(storage_arrays("float16", (4,)), max_size=3), st.sampled_from(sorted(FORMATS)))
def test_shares_add_up(arrays, target):
    together = np.concatenate([np.zeros(0, np.float16), *arrays])
    total = sum((shares_as(array, target) for array in arrays), Shares())
    assert total == shares_as(together, target)


def test_json_has_the_contracts_fields():
    shares = shares_as([2.0**-30, 1.0, 2.0**-15, 1e6], "fp16")
    assert shares.to_dict() == {"underflow": 0.25, "subnormal_as": 0.25, "overflow": 0.25}


def test_an_unknown_target_or_scale_says_what_is_possible():
    with pytest.raises(OptionError, match=r"'fp8'.*fp16, bf16, e4m3, e5m2"):
        shares_as([1.0], "fp8")
    with pytest.raises(OptionError, match="int8"):
        shares_as([1.0], "int8")
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(OptionError, match="positive number"):
            shares_as([1.0], "fp16", scale)


def test_only_shares_are_added():
    with pytest.raises(TypeError):
        Shares() + 1
