"""How the elements of a tensor would land in a narrower float: `anchor hist --as fp16 --scale S`.

With s the smallest subnormal, N the smallest normal and M the largest finite value of the target,
and y = |x| * scale in real numbers, rounding to nearest, ties to even, puts y

    underflow      to zero                   y <= s/2
    subnormal_as   into the subnormal range  s/2 < y < N - s/2
    overflow       beyond M                  y >= M + half a step (a tie stays where M is even),
                                             and what is infinite already

torch's cast to float8_e4m3fn turns overflowing elements into M; they count as overflow here.

Shares are of the elements that are neither zero nor nan: those stay zero and nan in every format.
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
"""The short names of targets; torch's names are accepted too."""

_TARGETS = [
    kind.name
    for kind in dtypes.DTYPES.values()
    if kind.family == "float" and kind.name != "float8_e8m0fnu"  # that one has no zero
]


@dataclass(frozen=True, slots=True)
class Shares:
    """Where elements would land; the sum of two is that of both arrays together.

    count: elements that are neither zero nor nan.
    underflowing, subnormals, overflowing: how many of them (fractions of a bin that was split).
    exact: False where a bin was split.
    """

    count: int = 0
    underflowing: float = 0
    subnormals: float = 0
    overflowing: float = 0
    exact: bool = True

    @property
    def underflow(self) -> float:
        """Share that rounds to zero (of nothing: 0)."""
        return self.underflowing / (self.count or 1)

    @property
    def subnormal_as(self) -> float:
        """Share that becomes subnormal (of nothing: 0)."""
        return self.subnormals / (self.count or 1)

    @property
    def overflow(self) -> float:
        """Share that rounds beyond the largest finite value, or is infinite (of nothing: 0)."""
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
        """The shares, as JSON has them."""
        return {
            "underflow": self.underflow,
            "subnormal_as": self.subnormal_as,
            "overflow": self.overflow,
        }


def shares_as(source: Any, target: str, scale: float = 1.0, *, dtype: str | None = None) -> Shares:
    """How the elements of `source`, times `scale`, would land in the float type `target`.

    source: a Log2Histogram, or anything that `log2_histogram` takes (`dtype` as there).
    target: fp16, bf16, e4m3, e5m2, or torch's name of a float type.
    Raises OptionError for another target, or a scale that is not finite and positive.
    """
    limits = _limits(target, scale)
    if isinstance(source, Log2Histogram):
        return _of_histogram(source, limits)
    return _of_values(*as_storage(source, dtype), limits)


class _Limit(NamedTuple):
    """A limit of magnitudes: |x| is below it where |x| < at, or |x| == at and `inclusive`."""

    at: Fraction
    inclusive: bool


@lru_cache(maxsize=64)  # all records of a run are asked for the same target and scale
def _limits(target: str, scale: float) -> tuple[_Limit, _Limit, _Limit]:
    """The largest |x| that underflows, that is no normal number, that does not overflow."""
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
    """|x| of the elements that are neither zero nor nan: of floats their bits, of integers |x|."""
    if layout is None:
        numbers = magnitudes(values)
        return numbers[numbers > 0]
    numbers = values.view(layout.unsigned) & (layout.sign - 1)
    return numbers[(numbers - 1) < layout.infinity]  # zero less one is the largest number


def _last_pattern(limit: _Limit, layout: BitLayout | None) -> int:
    """The largest magnitude below the limit: as float bits, which are ordered as values, or as |x|.

    It may be larger than any in the format: then every element is below the limit.
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
    """floor(log2) of a positive fraction."""
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
    """For each limit, the part of the bin that lies below it, and whether it cuts the bin."""
    edge = Fraction(2) ** exponent
    for limit in limits:
        position = limit.at / edge
        at_edge = position == 1 and limit.inclusive
        yield float(min(max(position - 1, Fraction(0)), Fraction(1))), at_edge or 1 < position < 2
