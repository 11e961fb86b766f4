"""How many elements of a tensor a cast to a narrower float would spoil: `anchor hist --as fp16`.

Elements may be scaled before the cast (`--scale S`). Let s be the smallest subnormal, N the
smallest normal and M the largest finite value of the target, and y = |x| * scale as an exact
number. Rounding to nearest, ties to even, puts y

    underflow      to zero                   y <= s/2
    subnormal_as   into the subnormal range  s/2 < y < N - s/2
    overflow       beyond M                  y >= M + half the spacing of the target's values at M
                                             (only y > that sum where the last bit of M is 0, as
                                             ties then round to M), and what is infinite already

torch's cast to float8_e4m3fn turns overflowing elements into M; they count as overflow here.

Shares are of the elements that are neither zero nor nan, as zero and nan stay what they are in
every format.
An infinite element has overflowed where it was made, and stays infinite at every scale. From values
the shares are exact for every scale, because the limits are compared as bits of the source. From a
histogram they are exact where no limit falls into a bin with elements (a limit at a bin's lower
edge counts as inside, as the bin does not separate 2**e from the values above it). The elements of
a bin that is cut are taken to lie evenly in it, and `Shares.exact` is False.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import OptionError
from anchorlib.summary.arrays import as_storage
from anchorlib.summary.exponent_counts import magnitudes
from anchorlib.summary.float_bits import blocks, elements, layout_of, parts
from anchorlib.summary.histogram import Log2Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anchorlib.summary.float_bits import BitLayout

__all__ = ["FORMATS", "Shares", "shares_as"]

FORMATS = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""Short name → torch's name of the float types that are asked for most."""

_TARGETS = [
    kind.name
    for kind in dtypes.DTYPES.values()
    if kind.family == "float" and kind.name != "float8_e8m0fnu"  # that one has no zero
]


@dataclass(frozen=True, slots=True)
class Shares:
    """How many elements of an array a cast to a narrower float would spoil, and in which way.

    Two Shares can be added: the result counts the elements of both arrays together.

    count: how many elements are neither zero nor nan.
    underflowing, subnormals, overflowing: how many of these would become zero, subnormal, or too
        large. They are no whole numbers if a histogram's bin had to be split.
    exact: False if a bin had to be split, so that the numbers are estimates.
    """

    count: int = 0
    underflowing: float = 0
    subnormals: float = 0
    overflowing: float = 0
    exact: bool = True

    @property
    def underflow(self) -> float:
        """The share of elements that would round to zero; 0 if all elements are zero or nan."""
        return self.underflowing / (self.count or 1)

    @property
    def subnormal_as(self) -> float:
        """The share of elements that would become subnormal; 0 if all elements are zero or nan."""
        return self.subnormals / (self.count or 1)

    @property
    def overflow(self) -> float:
        """The share of elements that overflow or are infinite; 0 if all are zero or nan."""
        return self.overflowing / (self.count or 1)

    def __add__(self, other: object) -> Shares:
        if not isinstance(other, Shares):
            return NotImplemented
        return Shares(
            self.count + other.count,
            self.underflowing + other.underflowing,
            self.subnormals + other.subnormals,
            self.overflowing + other.overflowing,
            self.exact and other.exact,
        )

    def to_dict(self) -> dict[str, float]:
        """Return the three shares as a dict for JSON."""
        return {
            "underflow": self.underflow,
            "subnormal_as": self.subnormal_as,
            "overflow": self.overflow,
        }


def shares_as(source: Any, target: str, scale: float = 1.0, *, dtype: str | None = None) -> Shares:
    """Count how many elements of `source`, times `scale`, a cast to the float `target` would spoil.

    source: a Log2Histogram; or a tensor or another array, as for `log2_histogram`.
    target: fp16, bf16, e4m3, e5m2, or torch's name of a float type.
    dtype: torch's name of the element type, where `source` is raw storage.
    Raises OptionError for another target, or a scale that is not finite and positive.
    """
    limits = _limits(target, scale)
    if isinstance(source, Log2Histogram):
        return _of_histogram(source, limits)
    return _of_values(*as_storage(source, dtype), limits)


class _Limit(NamedTuple):
    """A limit of magnitudes: |x| is below the limit if |x| < at, or |x| == at and `inclusive`."""

    at: Fraction
    inclusive: bool


@lru_cache(maxsize=64)  # all records of a run are asked for the same target and scale
def _limits(target: str, scale: float) -> tuple[_Limit, _Limit, _Limit]:
    """Return three limits of |x| that say what a cast to `target` makes of x times `scale`.

    Below the first limit the product becomes zero, below the second it becomes zero or subnormal,
    and below the third it does not overflow. Raises OptionError for an unknown target, or a scale
    that is not finite and positive.
    """
    name = FORMATS.get(target, target)
    if name not in _TARGETS:
        choices = ", ".join([*FORMATS, *_TARGETS])
        raise OptionError(f"values cannot be shown as {target!r} (choices: {choices})")
    if not (math.isfinite(scale) and scale > 0):
        raise OptionError(f"a scale is a positive number, not {scale!r}")
    kind = dtypes.DTYPES[name]
    assert kind.eps is not None
    assert kind.max is not None
    assert kind.smallest_normal_exponent is not None
    normal = Fraction(2) ** kind.smallest_normal_exponent
    half = normal * Fraction(kind.eps) / 2
    largest = Fraction(kind.max)
    step = Fraction(kind.eps) * Fraction(2) ** (math.frexp(kind.max)[1] - 1)
    tie_stays = (largest / step) % 2 == 0
    unit = Fraction(scale)
    return (
        _Limit(half / unit, inclusive=True),
        _Limit((normal - half) / unit, inclusive=False),
        _Limit((largest + step / 2) / unit, inclusive=tie_stays),
    )


def _of_values(raw: np.ndarray[Any, Any], name: str, limits: tuple[_Limit, ...]) -> Shares:
    flat, kind = parts(raw, dtypes.dtype(name))
    layout = layout_of(kind)
    last = [_last_pattern(limit, layout) for limit in limits]
    if layout is not None:  # an infinity is below no limit
        last = [min(pattern, layout.infinity - 1) for pattern in last]
    count = 0
    below = [0, 0, 0]
    for block in blocks(flat):
        numbers = _magnitudes(elements(block, kind), layout)
        count += numbers.size
        for index, pattern in enumerate(last):
            below[index] += int(np.count_nonzero(numbers <= pattern))
    return Shares(count, below[0], below[1] - below[0], count - below[2])


def _magnitudes(values: np.ndarray[Any, Any], layout: BitLayout | None) -> np.ndarray[Any, Any]:
    """Return a number, ordered as |x| is, for each element that is neither zero nor nan.

    The number of a float is its bits without the sign; that of an integer (`layout` None) is |x|.
    """
    if layout is None:
        numbers = magnitudes(values)
        return numbers[numbers > 0]
    numbers = values.view(layout.unsigned) & (layout.sign - 1)
    return numbers[(numbers - 1) < layout.infinity]  # zero less one is the largest number


def _last_pattern(limit: _Limit, layout: BitLayout | None) -> int:
    """Return the largest number that lies below the limit, in the numbering of `_magnitudes`.

    The result may be larger than the bits of any float: then every element is below the limit.
    """
    if layout is None:
        return _last_integer(limit)
    exponent = max(_exponent(limit.at), 1 - layout.bias)
    steps = _last_integer(
        _Limit(limit.at / Fraction(2) ** (exponent - layout.mantissa), limit.inclusive)
    )
    # A normal number's first bit adds the one to the field that is missing here.
    return ((exponent + layout.bias - 1) << layout.mantissa) + steps


def _last_integer(limit: _Limit) -> int:
    whole = math.floor(limit.at)
    return whole if limit.inclusive or whole != limit.at else whole - 1


def _exponent(number: Fraction) -> int:
    """Return floor(log2(number)) of a positive fraction, exactly."""
    guess = number.numerator.bit_length() - number.denominator.bit_length()
    return guess if number >= Fraction(2) ** guess else guess - 1


def _of_histogram(histogram: Log2Histogram, limits: tuple[_Limit, ...]) -> Shares:
    below = [0.0, 0.0, 0.0]
    exact = True
    for exponent, count in histogram.bins.items():
        for index, (part, cut) in enumerate(_bin_below(exponent, limits)):
            below[index] += count * part
            exact = exact and not cut
    count = histogram.count + histogram.inf
    return Shares(count, below[0], below[1] - below[0], count - below[2], exact)


def _bin_below(exponent: int, limits: tuple[_Limit, ...]) -> Iterator[tuple[float, bool]]:
    """Yield, for each limit, (share of the bin below the limit, whether the limit cuts the bin).

    The bin holds magnitudes from 2**exponent to 2**(exponent + 1).
    """
    edge = Fraction(2) ** exponent
    for limit in limits:
        position = limit.at / edge
        at_edge = position == 1 and limit.inclusive
        yield float(min(max(position - 1, Fraction(0)), Fraction(1))), at_edge or 1 < position < 2
