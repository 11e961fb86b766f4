"""Arithmetic that rounds after each operation, beside fractions and beside torch."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.formulas.rounded import Rounded, fma, nearest

SINGLES = st.floats(-(2.0**50), 2.0**50, width=32, allow_subnormal=False)
# Neither a product nor its error leaves the normal numbers.
DOUBLES = st.floats(min_value=1e-60, max_value=1e60) | st.floats(min_value=-1e60, max_value=-1e-60)


def rounded_fraction(value: Fraction, single: bool) -> float:
    """The nearest float32 or float64 of a fraction, ties to even."""
    if not single:
        return value.numerator / value.denominator  # Python rounds this division correctly
    around = np.float32(value.numerator / value.denominator)
    near = [np.nextafter(around, np.float32(sign * np.inf)) for sign in (-1, 1)]
    candidates = [one for one in (around, *near) if np.isfinite(one)]

    def apart(one: np.float32) -> tuple[Fraction, int]:
        bits = struct.unpack("<I", struct.pack("<f", one))[0]
        return abs(Fraction(float(one)) - value), bits & 1

    return float(min(candidates, key=apart))


@given(SINGLES, SINGLES, SINGLES)
def test_a_float32_fma_is_the_exact_result_rounded_once(a: float, b: float, c: float) -> None:
    x, y, z = (Rounded(np.array([one]), "float32") for one in (a, b, c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert float(fma(x, y, z).values[0]) == rounded_fraction(exact, single=True)


@given(DOUBLES, DOUBLES, DOUBLES)
def test_a_float64_fma_is_the_exact_result_rounded_once(a: float, b: float, c: float) -> None:
    x, y, z = (Rounded(np.array([one]), "float64") for one in (a, b, c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert float(fma(x, y, z).values[0]) == rounded_fraction(exact, single=False)


@given(st.integers(0, 2**32 - 1))
def test_values_are_rounded_to_16_bits_as_torch_rounds_them(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        for precision in ("bfloat16", "float16"):
            theirs = torch.from_numpy(value.copy()).to(getattr(torch, precision)).float().numpy()
            assert np.array_equal(nearest(value, precision), theirs, equal_nan=True)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32", "float64"])
def test_every_operation_is_rounded_as_torch_rounds_it(precision: str) -> None:
    kind = getattr(torch, precision)
    x, y = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)).to(kind)
    wide = torch.float64 if precision == "float64" else torch.float32
    a, b = (Rounded(one.to(wide).numpy(), precision) for one in (x, y))
    pairs = [(a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y), (-a, -x)]
    for ours, theirs in pairs:
        assert np.array_equal(ours.values, theirs.to(wide).numpy())
