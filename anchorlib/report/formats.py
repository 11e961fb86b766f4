"""The limits of fp16, bf16, e4m3 and e5m2 as the page draws and counts with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anchorlib import dtypes
from anchorlib.summary import FORMATS

__all__ = ["FormatLimits", "format_limits"]


@dataclass(frozen=True, slots=True)
class FormatLimits:
    """The limits of one number format, for counting the values that the format cannot hold.

    All are exact in float64; `anchorlib.summary.shares_as` counts by the same limits.
    name: "fp16", "bf16", "e4m3" or "e5m2".
    largest, normal, subnormal: the largest finite, smallest normal and smallest subnormal value.

    underflow, below_normal, overflow: with rounding to nearest, |x| up to `underflow` becomes zero,
        |x| up to `below_normal` becomes subnormal (or zero), and |x| from `overflow` on overflows.
    """

    name: str
    largest: float
    normal: float
    subnormal: float
    underflow: float
    below_normal: float
    overflow: float


def format_limits() -> list[FormatLimits]:
    """Return the limits of all number formats that `anchor hist --as` knows."""
    return [_limits(short, dtypes.dtype(name)) for short, name in FORMATS.items()]


def _limits(short: str, kind: dtypes.DType) -> FormatLimits:
    assert kind.eps is not None
    assert kind.max is not None
    assert kind.smallest_normal_exponent is not None
    normal = 2.0**kind.smallest_normal_exponent
    subnormal = normal * kind.eps
    step = kind.eps * 2.0 ** (math.frexp(kind.max)[1] - 1)
    return FormatLimits(
        name=short,
        largest=kind.max,
        normal=normal,
        subnormal=subnormal,
        underflow=subnormal / 2,
        below_normal=normal - subnormal / 2,
        overflow=kind.max + step / 2,
    )
