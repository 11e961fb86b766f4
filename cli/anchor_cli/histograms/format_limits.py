"""The limits of number formats, which are drawn as lines over a histogram.

    largest            beyond it magnitudes overflow      (65504 for fp16, 448 for e4m3)
    smallest normal    below it precision is lost bit by bit
    smallest subnormal below half of it everything becomes zero

With a scale S, values are stored as S times themselves: every limit moves down by log2(S).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anchorlib.dtypes import dtype
from anchorlib.summary import FORMATS

__all__ = ["Limit", "limits_of", "limits_within"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a number format, or of several formats that have the same limit.

    value: the limit, such as 65504.0.
    end: which limit it is: "largest", "smallest normal" or "smallest subnormal".
    scale: the factor by which values are multiplied before they would be stored in the format.
    """

    value: float
    end: str
    formats: tuple[str, ...]
    scale: float = 1.0

    @property
    def at(self) -> float:
        """Where the limit is on the axis of exponents: log2(value / scale)."""
        return math.log2(self.value) - math.log2(self.scale)

    def label(self, power: Callable[[int], str]) -> str:
        """Returns the limit as text, as "fp16, e5m2 smallest normal 2^-14" or "e4m3 largest 448".

        power: formats an exponent as a power of two.
        """
        largest = self.end == "largest"
        value = f"{self.value:g}" if largest else power(math.frexp(self.value)[1] - 1)
        scaled = "" if self.scale == 1 else f" / {self.scale:g}"
        return f"{', '.join(self.formats)} {self.end} {value}{scaled}"


def limits_of(fmt: str) -> list[tuple[float, str]]:
    """Returns the three limits of a number format as (value, name), such as (65504.0, "largest").

    fmt: a short name ("fp16") or torch's name ("float16").
    """
    kind = dtype(FORMATS.get(fmt, fmt))
    assert kind.smallest_normal_exponent is not None
    assert kind.eps is not None
    assert kind.max is not None
    normal = 2.0**kind.smallest_normal_exponent
    return [
        (kind.max, "largest"),
        (normal, "smallest normal"),
        (normal * kind.eps, "smallest subnormal"),
    ]


def limits_within(
    formats: Sequence[str], lowest: float, highest: float, scale: float = 1.0
) -> list[Limit]:
    """Returns the limits of some number formats in a range of exponents, the largest first.

    A limit is in the range if log2(limit / scale) is above `lowest` and at most `highest`. Formats
    that have the same limit share one Limit.

    scale: the factor by which values are multiplied before they would be stored in the formats.
    """
    shared: dict[tuple[float, str], list[str]] = {}
    for fmt in formats:
        for value, end in limits_of(fmt):
            shared.setdefault((value, end), []).append(fmt)
    limits = [
        Limit(value, end, tuple(names), scale)
        for (value, end), names in sorted(shared.items(), reverse=True)
    ]
    return [limit for limit in limits if lowest < limit.at <= highest]
