"""Summaries against an oracle of Python floats and fractions, flushing subnormals or not."""

from __future__ import annotations

import math
import pickle
import threading
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.dtypes import DTYPES, dtype
from anchorlib.errors import UnknownDTypeError
from anchorlib.summary import Log2Histogram, digest, float_bits, summarise
from tests import oracle
from tests.seeds import examples
from tests.strategies import PART, from_patterns, mantissa_bits, stored

pytestmark = pytest.mark.usefixtures("path_taken")

REAL_FLOATS = [name for name, kind in DTYPES.items() if kind.family == "float"]
NARROW = [name for name in REAL_FLOATS if DTYPES[name].storage.itemsize <= 2]
COMPLEX = list(PART)

either = pytest.mark.parametrize("flush", [False, True], ids=["ieee", "flush"])


def figures(histogram: Log2Histogram) -> dict:
    """The histogram as the oracle puts it; the order of the bins matters."""
    names = ("zero", "nan", "inf", "subnormal")
    return {"bins": list(histogram.bins.items()), **{n: getattr(histogram, n) for n in names}}


def expected_figures(raw, name) -> dict:
    expected = oracle.histogram(oracle.numbers(raw, name), name)
    return {**expected, "bins": list(expected["bins"].items())}


def summarised(raw, name, flush=False, block=float_bits.BLOCK):
    with patch.object(float_bits, "BLOCK", block), oracle.flushing(flush):
        return summarise(raw, name)


def extremes(finite):
    """min and max as the bits order them: -0.0 is below 0.0."""

    def key(value):
        return (value, math.copysign(1, value))

    return float(min(finite, key=key)), float(max(finite, key=key))


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(stored(), st.booleans(), st.sampled_from([1, 3, 1 << 16]))
def test_every_figure_is_that_of_the_oracle(array, flush, block):
    raw, name = array
    summary = summarised(raw, name, flush, block)
    values = oracle.numbers(raw, name)
    finite = [value for value in values if math.isfinite(value)]
    assert figures(summary.histogram) == expected_figures(raw, name)
    assert summary.digest == xxhash.xxh3_128_digest(raw.tobytes())
    assert summary.numel == len(values)
    assert summary.histogram.count == sum(value != 0 for value in finite)
    if not finite:
        assert all(map(math.isnan, (summary.min, summary.max, summary.sum, summary.l2)))
        return
    total, magnitude, l2 = oracle.sum_and_l2(finite)
    low, high = extremes(finite)
    assert (summary.min.hex(), summary.max.hex()) == (low.hex(), high.hex())
    # One rounding of the running sum for each value, and a last one.
    bound = len(finite) * magnitude / 2**52 + Fraction(1, 2**1074)
    if math.isfinite(summary.sum):
        assert abs(Fraction(summary.sum) - total) <= bound
    else:
        assert abs(total) + bound > Fraction(dtype("float64").max)
    assert summary.l2 == pytest.approx(l2, rel=1e-14, abs=5e-324)


@either
@pytest.mark.parametrize("name", REAL_FLOATS)
def test_just_under_at_and_over_each_power_of_two_is_in_its_bin(name, flush):
    kind = dtype(name)
    step = 1 << mantissa_bits(kind)
    width = 8 * kind.storage.itemsize
    fields = (1 << (width - 1)) // step if name != "float8_e8m0fnu" else 256
    stored_patterns = [f * step + d for f in range(1, fields) for d in (-1, 0, 1)]
    stored_patterns = [p for p in stored_patterns if p < 1 << width]
    raw = from_patterns(stored_patterns, name)
    assert figures(summarised(raw, name, flush).histogram) == expected_figures(raw, name)


@either
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_each_value_just_under_a_power_of_two_stands_alone_in_its_bin(name, flush):
    lowest = {"float32": -149, "float64": -1074}[name]
    highest = {"float32": 127, "float64": 1023}[name]
    exponents = range(lowest + 1, highest + 1)
    powers = np.array([math.ldexp(1.0, e) for e in exponents], name)
    raw = np.nextafter(powers, np.zeros_like(powers))
    histogram = summarised(raw, name, flush).histogram
    assert histogram.bins == {e - 1: 1 for e in exponents}


@either
@pytest.mark.parametrize("exponent", [-1074, -1023, -1022, -149, -1, 0, 52, 1023])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_double_is_in_its_bin_alone(exponent, sign, flush):
    raw = np.array([sign * math.ldexp(1.0, exponent)])
    summary = summarised(raw, "float64", flush)
    assert summary.histogram.bins == {exponent: 1}
    assert summary.subnormal == (exponent < -1022)
    assert [summary.min, summary.max, summary.sum, summary.l2] == [raw[0]] * 3 + [abs(raw[0])]


@either
@pytest.mark.parametrize("name", NARROW)
def test_all_patterns_of_a_narrow_type_are_counted_right(name, flush):
    kind = dtype(name)
    raw = np.arange(1 << 8 * kind.storage.itemsize).astype(f"<u{kind.storage.itemsize}")
    raw = raw.view(kind.storage)
    assert figures(summarised(raw, name, flush).histogram) == expected_figures(raw, name)


@either
def test_float32_subnormals_count_in_min_max_sum_and_l2(flush):
    raw = np.array([1, 3, 0x80000002, 0x807FFFFF], np.uint32).view(np.float32)
    summary = summarised(raw, "float32", flush)
    tiny = 2.0**-149
    assert summary.min == -0x7FFFFF * tiny
    assert summary.max == 3 * tiny
    assert summary.sum == (1 + 3 - 2 - 0x7FFFFF) * tiny
    assert summary.l2 == pytest.approx(0x7FFFFF * tiny, rel=1e-12)
    assert summary.subnormal == 4


def test_the_answer_does_not_depend_on_flushing():
    rng = np.random.default_rng(0)
    for name in ("float32", "float64", "bfloat16", "complex64"):
        raw = np.frombuffer(rng.bytes(32_000), dtype(name).storage).copy()
        low = raw.view(f"u{min(raw.itemsize, 8)}" if name != "complex64" else "u4")
        low[::3] &= low.dtype.type((1 << {1: 8, 2: 7, 4: 23, 8: 52}[low.itemsize]) - 1)
        assert summarised(raw, name, flush=True) == summarised(raw, name, flush=False)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_an_empty_array_has_no_extremes(name, shape):
    raw = np.zeros(shape, dtype(name).storage)
    summary = summarise(raw, name)
    assert summary.histogram == Log2Histogram()
    assert summary.digest == xxhash.xxh3_128_digest(b"")
    assert all(map(math.isnan, (summary.min, summary.max, summary.sum, summary.l2)))


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "float8_e8m0fnu"])
def test_all_zeros(name):
    raw = np.zeros((3, 5), dtype(name).storage)
    summary = summarise(raw, name)
    numel = 30 if name in COMPLEX else 15
    assert summary.histogram == Log2Histogram(zero=numel)
    assert [summary.min, summary.max, summary.sum, summary.l2] == [0, 0, 0, 0]


def test_zeros_of_both_signs_are_zeros_and_order():
    summary = summarise(np.array([0.0, -0.0, 0.0]), "float64")
    assert summary.zero == 3
    assert math.copysign(1, summary.min) == -1
    assert math.copysign(1, summary.max) == 1


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
def test_nothing_finite_leaves_the_extremes_nan(name):
    kind = dtype(name)
    infinity = ((1 << 8 * kind.storage.itemsize - 1) >> mantissa_bits(kind)) - 1
    infinity <<= mantissa_bits(kind)
    sign = 1 << 8 * kind.storage.itemsize - 1
    raw = from_patterns([infinity, infinity + sign, infinity + 1, infinity + 1 + sign], name)
    summary = summarise(raw, name)
    assert summary.histogram == Log2Histogram(nan=2, inf=2)
    assert all(map(math.isnan, (summary.min, summary.max, summary.sum, summary.l2)))


def test_what_is_not_finite_stays_out_of_the_sums():
    raw = np.array([math.nan, 3.0, math.inf, -4.0, -math.inf, 0.0])
    summary = summarise(raw, "float64")
    assert (summary.min, summary.max, summary.sum, summary.l2) == (-4, 3, -1, 5)
    assert (summary.nan, summary.inf, summary.zero, summary.numel) == (1, 2, 1, 6)


@pytest.mark.parametrize("name", REAL_FLOATS + COMPLEX)
def test_values_across_many_blocks_are_all_seen(name):
    rng = np.random.default_rng(1)
    kind = dtype(name)
    raw = np.frombuffer(rng.bytes(70_000 * kind.storage.itemsize), kind.storage)
    with patch.object(float_bits, "BLOCK", 1 << 10):
        many = summarise(raw, name)
    assert figures(many.histogram) == expected_figures(raw, name)
    one = summarise(raw, name)
    assert (one.histogram, one.digest) == (many.histogram, many.digest)
    assert (one.min, one.max) == (many.min, many.max)
    assert one.l2 == pytest.approx(many.l2, rel=1e-13)


def test_an_extreme_in_the_last_short_block_is_found():
    raw = np.ones((1 << 16) + 1, np.float32)
    raw[-1] = -(2.0**-140)
    summary = summarise(raw, "float32")
    assert summary.min == -(2.0**-140)
    assert summary.histogram.bins == {-140: 1, 0: 1 << 16}


# The L2 norm and the sum at the ends of float64.


@either
@pytest.mark.parametrize("unit", [5e-324, 1e-310, 1e-300, 1e-160, 1.0, 1e160, 1e300, 4e307])
def test_l2_neither_overflows_nor_vanishes(unit, flush):
    unit = round(unit / 5e-324) * 5e-324 if unit < 1e-300 else unit
    raw = np.array([3 * unit, -4 * unit])
    summary = summarised(raw, "float64", flush)
    assert summary.l2 == pytest.approx(5 * unit, rel=1e-15)
    assert summary.sum == pytest.approx(-unit, rel=1e-15)


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
def test_scales_join_in_any_order(block):
    values = [1e-320, 1e-200, 1e-3, 1.0, 1e3, 1e200, 1e305]
    for count in range(1, len(values) + 1):
        for order in (1, -1):
            part = values[:count][::order]
            summary = summarised(np.array(part), "float64", block=block)
            assert summary.sum == pytest.approx(math.fsum(part), rel=1e-14)
            assert summary.l2 == pytest.approx(math.hypot(*part), rel=1e-14)


@pytest.mark.parametrize("border", [400, 401, -400, -399])
@pytest.mark.parametrize("block", [1, 2])
def test_scales_join_where_they_meet(border, block):
    raw = np.array([2.0 ** (border + 1), 2.0**border, -(2.0 ** (border - 1))])
    summary = summarised(raw, "float64", block=block)
    assert summary.sum == 2.5 * 2.0**border
    assert summary.l2 == pytest.approx(math.sqrt(5.25) * 2.0**border, rel=1e-15)


def test_small_blocks_survive_the_cancelling_of_large_ones():
    raw = np.array([1e300, -1e300, 2.5, 1e-300])
    assert summarised(raw, "float64", block=1).sum == 2.5
    raw = np.array([1e300, -1e300, 1e-300])
    assert summarised(raw, "float64", block=1).sum == 1e-300


def test_a_sum_beyond_the_range_is_infinite_and_one_that_returns_is_not():
    top = 1.7e308
    assert summarise(np.array([top, top]), "float64").sum == math.inf
    assert summarise(np.array([-top, -top]), "float64").sum == -math.inf
    assert summarise(np.array([top, top, -top]), "float64").sum == top
    assert summarise(np.array([top, top]), "float64").l2 == math.inf


def test_the_sum_of_narrow_floats_is_wide():
    assert summarise(np.ones(3000, np.float16), "float16").sum == 3000
    assert summarise(np.full(70_000, 60_000, np.float16), "float16").sum == 70_000 * 60_000.0


# Integers, bool, complex.


@pytest.mark.parametrize("name", [name for name, kind in DTYPES.items() if kind.family == "int"])
def test_integers_around_each_power_of_two_are_in_their_bin(name):
    info = np.iinfo(name)
    around = {s * 2**p + d for p in range(65) for d in (-1, 0, 1) for s in (1, -1)}
    values = sorted(v for v in around if info.min <= v <= info.max)
    raw = np.array(values, name)
    summary = summarise(raw, name)
    assert figures(summary.histogram) == expected_figures(raw, name)
    assert (summary.min, summary.max) == (float(info.min), float(info.max))
    assert summary.sum == float(sum(values))
    assert summary.l2 == pytest.approx(math.sqrt(sum(v * v for v in values)), rel=1e-15)


def test_the_ends_of_64_bit_integers():
    low = summarise(np.array([np.iinfo(np.int64).min]), "int64")
    assert low.histogram == Log2Histogram({63: 1})
    high = summarise(np.array([2**64 - 1], np.uint64), "uint64")
    assert high.histogram == Log2Histogram({63: 1})
    assert high.sum == 2.0**64


def test_a_sum_of_large_integers_is_exact_until_the_end():
    raw = np.array([2**62, 2**62, 2**62, -(2**62), -(2**62), -(2**62), 1], np.int64)
    assert summarise(raw, "int64").sum == 1
    assert summarise(np.full(7, 2**63, np.uint64), "uint64").sum == 7 * 2.0**63


def test_true_is_one():
    summary = summarise(np.array([True, False, True]), "bool")
    assert summary.histogram == Log2Histogram({0: 2}, zero=1)
    assert (summary.min, summary.max, summary.sum) == (0, 1, 2)
    assert summary.l2 == math.sqrt(2)


def test_a_true_of_any_byte_is_one():
    raw = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert summarise(raw, "bool").histogram == Log2Histogram({0: 3}, zero=1)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_both_parts_of_a_complex_element_count(name):
    summary = summarise(np.array([3 - 4j, 0 + 1j], name), name)
    assert summary.numel == 4
    assert summary.histogram == Log2Histogram({0: 1, 1: 1, 2: 1}, zero=1)
    assert (summary.min, summary.max, summary.sum) == (-4, 3, 0)
    assert summary.l2 == math.sqrt(26)


# What it takes, and what it is.


def test_strided_storage_is_summarised_in_c_order():
    raw = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2].T
    assert summarise(raw, "float32") == summarise(np.ascontiguousarray(raw), "float32")
    line = np.arange(9, dtype=np.float64)[::-2]
    assert summarise(line, "float64") == summarise(line.copy(), "float64")


def test_the_array_is_left_as_it_was():
    for name in DTYPES:
        raw = np.arange(2, 18, dtype=np.uint8).view(dtype(name).storage)
        before = raw.tobytes()
        raw.flags.writeable = False
        summarise(raw, name)
        assert raw.tobytes() == before


def test_an_array_of_another_dtype_is_refused():
    with pytest.raises(UnknownDTypeError, match="give the raw storage"):
        summarise(np.zeros(3), "float32")
    with pytest.raises(UnknownDTypeError, match="did you mean 'float32'"):
        summarise(np.zeros(3), "flaot32")


def test_the_digest_is_that_of_the_bytes_in_c_order():
    raw = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert digest(raw.T) == xxhash.xxh3_128_digest(raw.T.tobytes())
    assert digest(np.array(1.5)) == xxhash.xxh3_128_digest(np.array(1.5).tobytes())
    assert summarise(raw, "int32").digest == digest(raw)
    assert len(digest(raw)) == 16


def test_numpys_error_settings_do_not_matter():
    raw = np.array([1e-300, 1.0, 5e-324, 1e308, math.nan, math.inf])
    with np.errstate(all="raise"):
        summarise(raw, "float64")
        summarise(np.arange(65536, dtype=np.uint16).view(np.float16), "float16")
        summarise(np.arange(65536, dtype=np.uint32).view(np.uint32), "complex32")


def test_threads_do_not_share_their_scratch():
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(300_000).astype(np.float16) * 2**i for i in range(4)]
    expected = [summarise(a, "float16") for a in arrays]
    results: list = [None] * 4

    def work(index: int) -> None:
        results[index] = [summarise(arrays[index], "float16") for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[one] * 5 for one in expected]


def test_equal_summaries_are_equal_with_nan_and_after_pickling():
    nothing = summarise(np.array([math.nan]), "float64")
    copy = pickle.loads(pickle.dumps(nothing))
    assert copy == nothing
    assert hash(copy) == hash(nothing)
    assert summarise(np.array([0.0]), "float64") != summarise(np.array([-0.0]), "float64")
    assert nothing != "nothing"
