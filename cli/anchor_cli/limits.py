"""Where number formats end, in powers of two: the lines drawn over a histogram.

    largest            magnitudes from here on overflow   (fp16's 65504 lies just under 2^16)
    smallest normal    below it precision is lost bit by bit
    smallest subnormal below half of it everything becomes zero

With a scale S, values are stored as S times themselves: every limit moves down by log2(S).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anchorlib.dtypes import dtype
from anchorlib.summary import FORMATS

__all__ = ["Limit", "limits_of", "limits_within"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One end of the range of one format, or of several.

    exponent: log2 of the limit in the format itself.
    at: log2 of the unscaled magnitude that meets it.
    """

    exponent: int
    at: float
    end: str
    formats: tuple[str, ...]
    scale: float = 1.0

    def label(self, power: str) -> str:
        """As "fp16, e5m2 smallest normal 2^-14", `power` being how the caller writes 2^-14."""
        scaled = "" if self.scale == 1 else f" / {self.scale:g}"
        return f"{', '.join(self.formats)} {self.end} {power}{scaled}"


def limits_of(fmt: str) -> list[tuple[int, str]]:
    """(exponent, which end) of a format's three limits; `fmt` is a short name or torch's."""
    kind = dtype(FORMATS.get(fmt, fmt))
    assert kind.smallest_normal_exponent is not None
    assert kind.eps is not None
    assert kind.max is not None
    normal = kind.smallest_normal_exponent
    return [
        (math.frexp(kind.max)[1], "largest"),
        (normal, "smallest normal"),
        (normal + math.frexp(kind.eps)[1] - 1, "smallest subnormal"),
    ]


def limits_within(
    formats: Sequence[str], lowest: float, highest: float, scale: float = 1.0
) -> list[Limit]:
    """The limits with lowest < log2 <= highest, largest first; formats that agree share one."""
    shared: dict[tuple[int, str], list[str]] = {}
    for fmt in formats:
        for exponent, end in limits_of(fmt):
            if lowest < exponent - math.log2(scale) <= highest:
                shared.setdefault((exponent, end), []).append(fmt)
    return [
        Limit(exponent, exponent - math.log2(scale), end, tuple(names), scale)
        for (exponent, end), names in sorted(shared.items(), reverse=True)
    ]
