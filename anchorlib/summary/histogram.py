"""The log2 histogram of an array: how many of its elements lie in each power of two."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Log2Histogram"]


@dataclass(frozen=True, slots=True)
class Log2Histogram:
    """How many elements lie in each power of two.

    bins: {e: how many x have 2**e <= |x| < 2**(e+1)}; only exponents that occur, ascending.
    zero, nan, inf: elements that have no exponent (both zeros, both infinities).
    subnormal: how many of the binned elements are subnormal in their own dtype.

    Two histograms can be added: the result is the histogram of both arrays together.
    `Log2Histogram()` has no elements. A complex element counts as two: its real and its imaginary
    part.
    """

    bins: Mapping[int, int] = field(default_factory=dict, hash=False)
    zero: int = 0
    nan: int = 0
    inf: int = 0
    subnormal: int = 0

    @classmethod
    def from_pairs(
        cls,
        exponents: Iterable[int],
        counts: Iterable[int],
        *,
        zero: int = 0,
        nan: int = 0,
        inf: int = 0,
        subnormal: int = 0,
    ) -> Log2Histogram:
        """Return the histogram with `counts` elements in the bins of `exponents`, which ascend.

        zero, nan, inf, subnormal: counts as in the class.
        """
        return cls(
            dict(zip(_ints(exponents), _ints(counts), strict=True)), zero, nan, inf, subnormal
        )

    @classmethod
    def pooled(cls, histograms: Iterable[Log2Histogram]) -> Log2Histogram:
        """Return the sum of histograms; an empty histogram if there are none."""
        bins: Counter[int] = Counter()
        zero = nan = inf = subnormal = 0
        for one in histograms:
            for exponent, count in one.bins.items():
                bins[exponent] += count
            zero += one.zero
            nan += one.nan
            inf += one.inf
            subnormal += one.subnormal
        return cls(dict(sorted(bins.items())), zero, nan, inf, subnormal)

    @property
    def count(self) -> int:
        """How many elements are in bins: those that are finite and not zero."""
        return sum(self.bins.values())

    @property
    def numel(self) -> int:
        """How many elements there are: count + zero + nan + inf."""
        return self.count + self.zero + self.nan + self.inf

    def __add__(self, other: object) -> Log2Histogram:
        if not isinstance(other, Log2Histogram):
            return NotImplemented
        return Log2Histogram.pooled((self, other))

    def to_dict(self) -> dict[str, Any]:
        """Return the histogram as a dict for JSON: the fields, `count`, `numel`, by their names.

        The exponents, which are the keys of `bins`, become strings.
        """
        return {
            "numel": self.numel,
            "count": self.count,
            "zero": self.zero,
            "nan": self.nan,
            "inf": self.inf,
            "subnormal": self.subnormal,
            "bins": {str(exponent): count for exponent, count in self.bins.items()},
        }


def _ints(values: Any) -> list[int]:
    """Convert an array, or any iterable of numbers, to a list of Python integers, as JSON needs."""
    return values.tolist() if hasattr(values, "tolist") else [int(value) for value in values]
