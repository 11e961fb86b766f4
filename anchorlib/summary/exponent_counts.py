"""Counts how many elements have each exponent, block by block, from the elements' bits.

`np.log2` is wrong just below powers of two and several times slower. A comparison of floats takes
subnormals for zero in a thread that flushes them. Integer arithmetic on the bits has neither fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anchorlib.summary.float_bits import CHUNK, DOUBLE, SCRATCH, blocks, elements
from anchorlib.summary.histogram import Log2Histogram
from anchorlib.summary.pairs import PAIRED, counts_of_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anchorlib.dtypes import DType
    from anchorlib.summary.float_bits import BitLayout

__all__ = ["Finite", "FloatTally", "IntegerTally", "magnitudes"]


class Finite(NamedTuple):
    """The finite elements of a block, a piece of an array.

    patterns: the bits of the elements, unsigned.
    subnormal: for each element, whether it is subnormal as the float32 or float64 that it is
        scanned as; None if none is.
    """

    patterns: np.ndarray[Any, Any]
    subnormal: np.ndarray[Any, Any] | None


class FloatTally:
    """Counts how many float32 or float64 values have each exponent."""

    __slots__ = ("_inf", "_layout", "_low", "_signed_fields")

    def __init__(self, layout: BitLayout) -> None:
        self._layout = layout
        # One counter for each sign and exponent field: masking the sign off takes another pass.
        self._signed_fields = np.zeros(2 * layout.fields, np.int64)
        self._low: np.ndarray[Any, Any] | None = None  # subnormals, by the top bit of the mantissa
        self._inf = 0

    @classmethod
    def of(
        cls,
        layout: BitLayout,
        signed_fields: np.ndarray[Any, Any],
        low: np.ndarray[Any, Any] | None,
        inf: int,
    ) -> FloatTally:
        """Make a tally of counters that other code has counted.

        signed_fields: how many elements have each sign and exponent field. low: how many
        subnormals have each top bit of the mantissa; None if there are none. inf: how many elements
        are infinite.
        """
        tally = cls(layout)
        tally._signed_fields, tally._low, tally._inf = signed_fields, low, inf
        return tally

    def add(self, flat: np.ndarray[Any, Any], kind: DType) -> Iterator[Finite]:
        """Count the elements `flat` of type `kind`, and yield the finite ones, piece by piece.

        flat, kind: what `parts` returns. Elements are counted only as the result is iterated.
        """
        if kind.name != "float32" or flat.size < PAIRED:
            for block in blocks(flat):
                yield self._add_block(elements(block, kind))
            return
        for chunk in blocks(flat, CHUNK):
            patterns = chunk.view(self._layout.unsigned)
            counts = counts_of_pairs(patterns)
            self._signed_fields[: counts.size] += counts
            odd = bool(counts[-1]) or not _only_zeros(patterns, int(counts[0]))
            for block in blocks(patterns):
                yield self._finite(block) if odd else Finite(block, None)

    def _finite(self, patterns: np.ndarray[Any, Any]) -> Finite:
        patterns = self._leave_out_nonfinite(patterns)
        return Finite(patterns, self._count_subnormal(patterns))

    def _add_block(self, values: np.ndarray[Any, Any]) -> Finite:
        layout = self._layout
        patterns = values.view(layout.unsigned)
        fields = SCRATCH.double.view(np.int64)[: patterns.size]
        np.right_shift(patterns, layout.mantissa, out=fields, casting="same_kind")
        counts = np.bincount(fields, minlength=2 * layout.fields)
        self._signed_fields += counts
        if counts[layout.fields - 1] or counts[-1]:
            patterns = self._leave_out_nonfinite(patterns)
        if counts[0] or counts[layout.fields]:
            return Finite(patterns, self._count_subnormal(patterns))
        return Finite(patterns, None)

    def histogram(self, kind: DType) -> Log2Histogram:
        """Return the histogram of all elements counted so far.

        kind: the elements' dtype, which decides which of them count as subnormal.
        """
        layout = self._layout
        counts = self._signed_fields[: layout.fields] + self._signed_fields[layout.fields :]
        lowest, nonfinite = int(counts[0]), int(counts[-1])
        counts[0] = counts[-1] = 0
        bins = _bins(self._low, layout.lowest_exponent) | _bins(counts, -layout.bias)
        zero = lowest if self._low is None else lowest - int(self._low.sum())
        limit = kind.smallest_normal_exponent
        subnormal = sum(n for e, n in bins.items() if limit is not None and e < limit)
        return Log2Histogram(bins, zero, nonfinite - self._inf, self._inf, subnormal)

    def _leave_out_nonfinite(self, patterns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        magnitudes = patterns & (self._layout.sign - 1)
        self._inf += int(np.count_nonzero(magnitudes == self._layout.infinity))
        return patterns[magnitudes < self._layout.infinity]

    def _count_subnormal(self, patterns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        mantissa = self._layout.mantissa
        # The shift drops the sign. Zero less one wraps to the largest number, and does not count.
        subnormal = (patterns << 1) - 1 < (2 << mantissa) - 1
        if not subnormal.any():
            return None
        low = patterns[subnormal] & ((1 << mantissa) - 1)
        counts = np.bincount(_top_bit(low) - DOUBLE.bias, minlength=mantissa)
        self._low = counts if self._low is None else self._low + counts
        return subnormal


def _only_zeros(patterns: np.ndarray[Any, Any], low: int) -> bool:
    """Return whether all elements with exponent field 0 are 0.0.

    patterns: the bits of all elements. low: how many of them have the field 0; those that are not
        0.0 are -0.0 or subnormal.
    """
    return not low or patterns.size - np.count_nonzero(patterns) == low


class IntegerTally:
    """Counts how many integers have each exponent: the number of bits of |x|, less one."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields = np.zeros(DOUBLE.fields, np.int64)

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Count the exponents of some integers, at most BLOCK of them."""
        self._fields += np.bincount(_top_bit(magnitudes(values)), minlength=DOUBLE.fields)

    def histogram(self) -> Log2Histogram:
        """Return the histogram of all integers counted so far."""
        zero = int(self._fields[0])
        return Log2Histogram(_bins(self._fields[1:], 1 - DOUBLE.bias), zero)


def magnitudes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return |x| of each integer, as unsigned integers of the same width."""
    # abs() returns the smallest integer itself, but its bits read as unsigned are its magnitude.
    absolute: np.ndarray[Any, Any] = np.abs(values)
    return absolute.view(values.dtype.str.replace("i", "u"))


def _top_bit(unsigned: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return 1023 + floor(log2) of each integer, its exponent field as a float64; 0 for 0.

    The result lies in `SCRATCH.double`.
    """
    # Each bit behind a set bit is cleared, so that rounding to 53 bits cannot carry into the next
    # power of two.
    fields = SCRATCH.double[: unsigned.size]
    np.copyto(fields, unsigned & ~(unsigned >> 1))
    patterns = fields.view(np.int64)
    return np.right_shift(patterns, DOUBLE.mantissa, out=patterns)


def _bins(counts: np.ndarray[Any, Any] | None, first: int) -> dict[int, int]:
    """Return {exponent: count} of the counters that are not zero.

    counts: counters of the exponents first, first + 1, …; None gives an empty dict.
    """
    if counts is None:
        return {}
    used = np.flatnonzero(counts)
    return dict(zip((used + first).tolist(), counts[used].tolist(), strict=True))
