"""Which powers of two to multiply by before a cast to a narrower float: the loss scale to take.

With bins up to E, times 2**k every element is below 2**(E + 1 + k): nothing overflows as long as
that is no more than the target's largest finite value M. Of the scales up to there the largest
loses least to zero, and smaller ones lose no more as long as the lowest bin that it saves stays
above half the smallest subnormal s: the range from the smallest such scale to the largest is the
answer. Bins do not tell how near to 2**(E + 1) an element comes, so that twice the largest scale
may do no harm either.
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

LARGEST, SMALLEST = 1023, -1022  # exponents of the powers of two that a double holds in full


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """Scales 2**low … 2**high: none makes an element overflow, all lose equally few to zero.

    Elements that are infinite already stay so at every scale.

    underflow: the share of the elements that are neither zero nor nan.
    """

    low: int
    high: int
    underflow: float

    def to_dict(self) -> dict[str, float]:
        """As JSON has it: the scales themselves."""
        return {"low": 2.0**self.low, "high": 2.0**self.high, "underflow": self.underflow}


def scales_for(histogram: Log2Histogram, target: str) -> ScaleRange | None:
    """The scales to take for `target` (as of `shares_as`); None without a finite one to scale.

    Raises OptionError for another target.
    """
    shares_as(histogram, target)  # refuses a target that cannot be
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
    # The lowest bin of which anything is saved; one that begins at s / 2 has nothing to spare.
    saved = min((exponent for exponent in used if exponent + high >= half), default=max(used))
    low = high if saved + high <= half else max(half + 1 - saved, SMALLEST)
    return ScaleRange(low, high, shares_as(histogram, target, 2.0**high).underflow)
