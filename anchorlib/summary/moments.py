"""The moments of an array: min, max, sum and l2 (Euclidean norm) of finite elements, in float64.

The extremes are found by comparing bits. Squares of very large or tiny float64 values would
overflow or vanish. So blocks of such values are scaled by a power of two first, and the sums of
each scale are kept apart until the end (after Blue, "A portable Fortran program to find the
Euclidean norm of a vector", 1978).
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib.summary.float_bits import DOUBLE, SCRATCH

if TYPE_CHECKING:
    from anchorlib.summary.exponent_counts import Finite
    from anchorlib.summary.float_bits import BitLayout

__all__ = ["NONE", "SAFE", "FloatMoments", "IntegerMoments", "Moments"]

Moments = tuple[float, float, float, float]
"""(min, max, sum, l2), where l2 is the Euclidean norm; all nan if there is no finite element."""

NONE: Moments = (math.nan, math.nan, math.nan, math.nan)

SAFE = 400  # squares of 2**±401, and sums of 2**64 of them, are far inside float64
SHIFT = 600  # scaling by 2**±600 makes the squares of 2**±1074 safe


class FloatMoments:
    """Accumulates min, max, sum and l2 of float32 or float64 values, block by block."""

    __slots__ = ("_high", "_layout", "_low", "_squares", "_sums")

    def __init__(self, layout: BitLayout) -> None:
        self._layout = layout
        self._low: int | None = None  # the extremes, as integers that are ordered as the floats are
        self._high = 0
        self._sums: dict[int, float] = {}  # by the power of two that the values were scaled by
        self._squares: dict[int, float] = {}

    def add(self, finite: Finite) -> None:
        """Take some finite elements of the array into account."""
        if not finite.patterns.size:
            return
        low, high = self._extremes(finite.patterns)
        self._high = high if self._low is None else max(self._high, high)
        self._low = low if self._low is None else min(self._low, low)
        shift = self._shift(max(high, -1 - low))
        wide = self._wide(finite, shift)
        self._sums[shift] = self._sums.get(shift, 0.0) + float(wide.sum())
        np.square(wide, out=wide)  # np.dot uses threads, and its result depends on their number
        self._squares[shift] = self._squares.get(shift, 0.0) + float(wide.sum())

    def result(self) -> Moments:
        """Return (min, max, sum, l2) of all elements added, in float64.

        A sum or l2 beyond float64's range is inf. All four are NaN if there are no elements.
        """
        if self._low is None:
            return NONE
        low, high = self._layout.ordered(self._low), self._layout.ordered(self._high)
        total, shift = _join(self._sums, 1)
        squares, square_shift = _join(self._squares, 2)
        return low, high, _scaled(total, -shift), _scaled(math.sqrt(squares), -square_shift)

    def _extremes(self, patterns: np.ndarray[Any, Any]) -> tuple[int, int]:
        # Read unsigned, the largest pattern is the most negative value, if there is a negative one;
        # read signed, it is the most positive. Where all have one sign, the smallest is the other.
        sign = self._layout.sign
        unsigned = int(patterns.max())
        signed = int(patterns.view(self._layout.signed).max())
        low = sign - 1 - unsigned if unsigned >= sign else int(patterns.min())
        high = signed if signed >= 0 else sign - 1 - int(patterns.min())
        return low, high

    def _shift(self, magnitude: int) -> int:
        exponent = (magnitude >> self._layout.mantissa) - self._layout.bias
        if exponent > SAFE:
            return -SHIFT
        # All zeros have the lowest exponent as well; scaling them does no harm.
        return SHIFT if exponent < -SAFE else 0

    def _wide(self, finite: Finite, shift: int) -> np.ndarray[Any, Any]:
        """Return the values times 2**shift as float64; they lie in `SCRATCH.double`."""
        layout = self._layout
        wide = SCRATCH.double[: finite.patterns.size]
        np.copyto(wide, finite.patterns.view(layout.floating))
        if shift:
            wide *= 2.0**shift
        exponent = layout.lowest_exponent + shift
        if finite.subnormal is not None and exponent >= 1 - DOUBLE.bias:
            # The conversion above makes subnormals zero in a thread that flushes them, so they are
            # converted as integers. (Those below float64's normal range are negligible beside the
            # block's largest value.)
            low = finite.patterns[finite.subnormal]
            unit = np.where(low & layout.sign, -(2.0**exponent), 2.0**exponent)
            wide[finite.subnormal] = unit * (low & ((1 << layout.mantissa) - 1))
        return wide


class IntegerMoments:
    """Accumulates min, max, sum and l2 of integers, block by block.

    The sum is exact until it is rounded to float64.
    """

    __slots__ = ("_high", "_low", "_squares", "_total")

    def __init__(self) -> None:
        self._low: int | None = None
        self._high = 0
        self._total = 0
        self._squares = 0.0

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Take some integers into account: at least one, at most BLOCK."""
        low, high = int(values.min()), int(values.max())
        self._high = high if self._low is None else max(self._high, high)
        self._low = low if self._low is None else min(self._low, low)
        self._total += _exact_sum(values)
        wide = SCRATCH.double[: values.size]
        np.copyto(wide, values)
        self._squares += float(np.square(wide, out=wide).sum())

    def result(self) -> Moments:
        """Return (min, max, sum, l2) of all integers added, as float64; all NaN without any."""
        if self._low is None:
            return NONE
        total = float(self._total)
        return float(self._low), float(self._high), total, math.sqrt(self._squares)


def _exact_sum(values: np.ndarray[Any, Any]) -> int:
    if values.dtype.itemsize < DOUBLE.unsigned.itemsize:
        return int(values.sum(dtype=np.int64))
    # The sum of a block of 64-bit integers can overflow 64 bits; that of their halves cannot.
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _join(scaled: dict[int, float], power: int) -> tuple[float, int]:
    """Add up sums of values that were scaled by different powers of two.

    scaled: shift → the sum of values that were scaled by 2**(power * shift).
    Returns (sum, shift), where the shift is that of the largest values, and the sum is the true sum
    times 2**(power * shift).
    """
    top = min((shift for shift, value in scaled.items() if value), default=0)
    # ldexp, because 2.0**-1200 by itself is zero.
    parts = (math.ldexp(value, power * (top - shift)) for shift, value in sorted(scaled.items()))
    return sum(parts, 0.0), top


def _scaled(value: float, shift: int) -> float:
    """Return value * 2**shift, rounded once.

    A subnormal result is right also in a thread that flushes subnormals to zero.
    """
    if not shift:
        return value
    mantissa, exponent = math.frexp(value)
    left = exponent + shift - DOUBLE.lowest_exponent  # bits above the smallest subnormal
    if left > DOUBLE.mantissa:
        try:
            return math.ldexp(value, shift)
        except OverflowError:
            return math.copysign(math.inf, value)
    steps = round(abs(Fraction(mantissa)) * Fraction(2) ** left)
    return float(math.copysign(struct.unpack("<d", struct.pack("<Q", steps))[0], value))
