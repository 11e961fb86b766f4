"""The powers of two that suit as a loss scale before a cast to a narrower float.

Let E be the exponent of the highest bin with elements: every element times the scale 2**k is below
2**(E + 1 + k). So no element overflows as long as that bound is at most the target's largest finite
value. Of these scales, the largest turns the fewest elements into zero. Take the lowest bin of
which the largest scale keeps any element from becoming zero. A smaller scale turns no more elements
into zero than the largest does, if this bin, multiplied by the smaller scale, still begins above
half the target's smallest subnormal. `scales_for` returns the range from the least such scale to
the largest scale. Bins do not say how near to 2**(E + 1) an element comes, so twice the largest
scale may be harmless too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorlib import dtypes
from anchorlib.summary.shares import FORMATS, shares_as

if TYPE_CHECKING:
    from anchorlib.summary.histogram import Log2Histogram

__all__ = ["ScaleRange", "scales_for"]

LARGEST, SMALLEST = 1023, -1022  # exponents of the powers of two that are normal float64


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """The loss scales 2**low … 2**high that suit a tensor before a cast to a narrower float.

    None of these scales lets a finite element overflow, and all of them make the same elements
    zero. Infinite elements stay infinite.

    underflow: the share of elements that become zero, among those that are neither zero nor nan.
    """

    low: int
    high: int
    underflow: float

    def to_dict(self) -> dict[str, float]:
        """Return the range as a dict for JSON, with the scales instead of their exponents."""
        return {"low": 2.0**self.low, "high": 2.0**self.high, "underflow": self.underflow}


def scales_for(histogram: Log2Histogram, target: str) -> ScaleRange | None:
    """Return the loss scales that suit a cast of a tensor with this histogram to `target`.

    target: fp16, bf16, e4m3, e5m2, or torch's name of a float type. Returns None if no element is
    finite and not zero. Raises OptionError for an unknown target.
    """
    shares_as(histogram, target)  # raises for an unknown target
    if not histogram.count:
        return None
    kind = dtypes.dtype(FORMATS.get(target, target))
    assert kind.eps is not None
    assert kind.max is not None
    assert kind.smallest_normal_exponent is not None
    top = math.frexp(kind.max)[1] - 1  # 2**top is the largest power of two that is finite
    half = kind.smallest_normal_exponent + math.frexp(kind.eps)[1] - 2  # 2**half is s / 2
    used = [exponent for exponent, count in histogram.bins.items() if count]
    high = min(max(top - 1 - max(used), SMALLEST), LARGEST)
    # The lowest bin of which any element is saved; a bin that begins at s / 2 allows no less scale.
    saved = min((exponent for exponent in used if exponent + high >= half), default=max(used))
    low = high if saved + high <= half else max(half + 1 - saved, SMALLEST)
    return ScaleRange(low, high, shares_as(histogram, target, 2.0**high).underflow)
