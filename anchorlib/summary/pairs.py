"""Counts the exponents of float32 two at a time.

`np.bincount` takes about one nanosecond for each index, whatever it counts; that is half of a
summary. The exponents of two neighbours together are one index of 16 bits, so that it has half as
many to count; the table that comes out is added up along both of its sides.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from anchorlib.summary.layouts import SCRATCH, SINGLE

__all__ = ["PAIRED", "counts_of_pairs"]

Array = np.ndarray[Any, Any]

PAIRED: Final = 1 << 16
"""Elements from which on it pays: the table has up to 65,536 counters to add up."""

_BITS: Final = 8  # of an exponent field
_BOTH: Final = np.uint64(SINGLE.infinity << 32 | SINGLE.infinity)
_BESIDE: Final = np.uint64(32 - _BITS)  # brings the first one's field beside the second one's
_DOWN: Final = np.uint64(32 + SINGLE.mantissa - _BITS)


def counts_of_pairs(patterns: Array) -> Array:
    """How many of up to `CHUNK` float32 bit patterns have each of the 256 exponent fields."""
    pairs = patterns.size // 2
    index = SCRATCH.pairs[:pairs]
    other = SCRATCH.double.view(np.uint64)
    both = patterns[: 2 * pairs].view(np.uint64)
    for start in range(0, pairs, other.size):
        part = index[start : start + other.size]
        beside = other[: part.size]
        np.bitwise_and(both[start : start + other.size], _BOTH, out=part)
        np.left_shift(part, _BESIDE, out=beside)
        np.bitwise_or(part, beside, out=part)
        np.right_shift(part, _DOWN, out=part)
    table = np.bincount(index.view(np.int64))
    table.resize((-(-table.size // SINGLE.fields), SINGLE.fields), refcheck=False)
    counts = table.sum(axis=0)
    counts[: len(table)] += table.sum(axis=1)
    if patterns.size % 2:
        counts[(int(patterns[-1]) & SINGLE.infinity) >> SINGLE.mantissa] += 1
    return counts  # type: ignore[no-any-return]
