"""Arithmetic in which every rounding is explicit.

    g, y = Rounded(g, "float32"), Rounded(y, "float32")
    g * (1 - y * y)             three roundings to float32
    g * fma(-y, y, 1)           two roundings: the product inside `fma` is not rounded

A formula is written once and evaluated in several precisions: in an element type, to see whether it
reproduces recorded bits, and in `EXACT`, to see how far each run is from the truth.

bfloat16 and float16 are computed in float32 and rounded after each operation. That is the correctly
rounded result for +, -, *, / and the square root, since float32 has more than twice the digits and
two to spare (Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

__all__ = ["EXACT", "PRECISIONS", "Rounded", "fma", "nearest"]

Array = np.ndarray[Any, Any]
EXACT: Final = "exact"
"""The widest arithmetic that numpy has: 64 bits of mantissa on x86-64, at least float64's 53."""


def _bfloat16(values: Array) -> Array:
    """Round float32 values to the nearest bfloat16, as float32; ties to even, NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.where(np.isnan(values), values, even.view(np.float32))


def _float16(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float32)


def _same(values: Array) -> Array:
    return values


PRECISIONS: Final[dict[str, tuple[Any, Callable[[Array], Array]]]] = {
    "float32": (np.float32, _same),
    "float64": (np.float64, _same),
    "bfloat16": (np.float32, _bfloat16),
    "float16": (np.float32, _float16),
    EXACT: (np.longdouble, _same),
}
"""By precision: the numpy type to compute in, and the function that rounds its values."""


class Rounded:
    """An array of one precision, whose every operation is rounded to that precision.

    A Python number in an operation is a constant of the numpy type in which the precision is
    computed.

    values: an array of any shape.
    precision: a key of `PRECISIONS`.
    """

    __slots__ = ("precision", "values")

    def __init__(self, values: Any, precision: str) -> None:
        kind, nearest_of = PRECISIONS[precision]
        self.values: Array = nearest_of(np.asarray(values, kind))
        self.precision = precision

    def of(self, values: Any) -> Rounded:
        """Return a new array of `values`, rounded to the precision of this array."""
        return Rounded(values, self.precision)

    def map(self, function: Callable[[Array], Array]) -> Rounded:
        """Return the result of `function` on the values, rounded to the precision of this array."""
        return self.of(function(self.values))

    def sum(self, *, order: str = "pairwise") -> Rounded:
        """Return the sum over the last axis, kept as an axis of size 1.

        order: "pairwise" adds as numpy does, and rounds the whole sum; "sequential" adds one term
            after another and rounds each partial sum.
        """
        if order == "pairwise":
            return self.map(lambda one: one.sum(-1, keepdims=True))
        total = self.of(self.values[..., :1])
        for at in range(1, self.values.shape[-1]):
            total = total + self.of(self.values[..., at : at + 1])
        return total

    def __add__(self, other: Any) -> Rounded:
        return self.of(self.values + self._other(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Rounded:
        return self.of(self.values - self._other(other))

    def __rsub__(self, other: Any) -> Rounded:
        return self.of(self._other(other) - self.values)

    def __mul__(self, other: Any) -> Rounded:
        return self.of(self.values * self._other(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Rounded:
        return self.of(self.values / self._other(other))

    def __rtruediv__(self, other: Any) -> Rounded:
        return self.of(self._other(other) / self.values)

    def __neg__(self) -> Rounded:
        return self.of(-self.values)

    def _other(self, other: Any) -> Array:
        return other.values if isinstance(other, Rounded) else self.values.dtype.type(other)


def fma(a: Rounded, b: Rounded, c: Rounded | float) -> Rounded:
    """Return a·b + c with a single rounding in float32 and float64; in `EXACT` an ordinary a·b + c.

    The intermediate sum is rounded to odd, so that the last rounding cannot meet a tie that the
    rounding before it made (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums:
    proved algorithms using rounding to odd", 2008). For 16-bit types, the float32 result is rounded
    once more. The result has the precision of `a`.
    """
    third = c.values if isinstance(c, Rounded) else a.values.dtype.type(c)
    if a.precision == EXACT:
        return a.of(a.values * b.values + third)
    x, y, z = np.broadcast_arrays(a.values, b.values, third)
    x, y, z = (one.astype(np.float64) for one in (x, y, z))
    if a.precision == "float64":
        high, low = _two_product(x, y)
        sum_high, sum_low = _two_sum(z, low)
        top, rest = _two_sum(high, sum_high)
        return a.of(top + _odd_sum(sum_low, rest))
    return a.of(_odd_sum(x * y, z).astype(np.float32))


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x + y rounded to float64, and the exact rest that this sum lacks (Knuth)."""
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x·y rounded to float64, and the rest that this product lacks (Dekker).

    The rest is exact where nothing overflows or underflows.
    """
    product = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return product, x2 * y2 - (((product - x1 * y1) - x2 * y1) - x1 * y2)


def _halves(x: Array) -> tuple[Array, Array]:
    """Return two float64 numbers whose sum is `x`, each of at most 26 bits (Veltkamp).

    The first has the upper bits of the mantissa.
    """
    large = x * 134217729.0
    upper = large - (large - x)
    return upper, x - upper


def _odd_sum(x: Array, y: Array) -> Array:
    """Return x + y in float64, rounded to odd: a sum that is not exact gets an odd last bit."""
    total, error = _two_sum(x, y)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    # The odd neighbour on the side of the exact sum: away from zero if the error has its sign.
    toward = np.where((error > 0) == (total > 0), 1, -1)
    odd: Array = np.where(inexact, bits + toward, bits).view(np.float64)
    return odd


def nearest(values: Array, precision: str) -> Array:
    """Return `values`, of any floating-point type, rounded to numbers of `precision`.

    precision: a key of `PRECISIONS`. The result has the numpy type in which the precision is
    computed: float32 for 16-bit types.
    """
    kind, nearest_of = PRECISIONS[precision]
    with np.errstate(all="ignore"):
        return nearest_of(np.asarray(values).astype(kind))


def erf(values: Array) -> Array:
    """Return the error function of each value, computed in float64."""
    flat = np.asarray(values, np.float64).reshape(-1)
    return np.array([math.erf(one) for one in flat.tolist()]).reshape(np.shape(values))
