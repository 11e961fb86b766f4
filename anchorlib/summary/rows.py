"""`summarise`: the summary of one array, made in one pass over its values by cache-sized blocks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from anchorlib import dtypes
from anchorlib.summary.compiled import SCANS
from anchorlib.summary.exponent_counts import FloatTally, IntegerTally
from anchorlib.summary.float_bits import CHUNK, blocks, elements, layout_of, parts
from anchorlib.summary.moments import FloatMoments, IntegerMoments

if TYPE_CHECKING:
    from anchorlib.dtypes import DType
    from anchorlib.summary.float_bits import BitLayout
    from anchorlib.summary.histogram import Log2Histogram

__all__ = ["ArraySummary", "digest", "summarise"]


@dataclass(frozen=True, slots=True, eq=False)
class ArraySummary:
    """The figures of an array that are stored in a record's row.

    digest: xxh3-128 of the raw bytes in C order, 16 bytes (users see `.hex()` of it).
    min, max, sum, l2: over finite elements, in float64; nan where there are none. Those of a
        complex array, and its histogram, are over its real and imaginary parts.
    histogram: how many elements lie in each power of two, are zero, nan, infinite or subnormal.

    Two summaries are equal when their bits are: nan equals nan, and 0.0 is not -0.0.
    """

    digest: bytes
    min: float
    max: float
    sum: float
    l2: float
    histogram: Log2Histogram

    @property
    def numel(self) -> int:
        """How many elements the array has (a complex one counts as two)."""
        return self.histogram.numel

    @property
    def zero(self) -> int:
        """How many elements are 0.0 or -0.0."""
        return self.histogram.zero

    @property
    def nan(self) -> int:
        """How many elements are nan."""
        return self.histogram.nan

    @property
    def inf(self) -> int:
        """How many elements are inf or -inf."""
        return self.histogram.inf

    @property
    def subnormal(self) -> int:
        """How many elements are subnormal in their dtype."""
        return self.histogram.subnormal

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraySummary):
            return NotImplemented
        return self._bits() == other._bits() and self.histogram == other.histogram

    def __hash__(self) -> int:
        return hash(self._bits())

    def _bits(self) -> bytes:
        return self.digest + struct.pack("<4d", self.min, self.max, self.sum, self.l2)


def summarise(raw: np.ndarray[Any, Any], dtype: str) -> ArraySummary:
    """Compute the summary of an array of raw storage.

    raw: of dtype `dtypes.dtype(dtype).storage` and any shape, 0-d and empty too; copied where it is
        not C-contiguous.
    dtype: torch's name of the element type.
    Raises UnknownDTypeError for an unknown name, or an array that is not that dtype's storage.

    Elements are classified by bits, so the answer is the same in a thread that flushes
    subnormals. Each part of a complex element counts as an element; True counts as 1.
    """
    flat, kind = parts(raw, dtypes.of_storage(raw, dtype))
    layout = layout_of(kind)
    with np.errstate(all="ignore"):  # overflow is expected here, even where a user set np.seterr
        if layout is None:
            return _of_integers(flat, kind)
        return _of_floats(flat, kind, layout)


def digest(raw: np.ndarray[Any, Any]) -> bytes:
    """Return the xxh3-128 hash of an array's bytes in C order: 16 bytes, big-endian."""
    return xxhash.xxh3_128_digest(np.ascontiguousarray(raw).data)


def _of_floats(flat: np.ndarray[Any, Any], kind: DType, layout: BitLayout) -> ArraySummary:
    scan = SCANS.get(layout, flat)
    scanned = None if scan is None else scan.both(flat, kind)
    if scanned is not None:
        digest = xxhash.xxh3_128_digest(flat.data)
        return ArraySummary(digest, *scanned[1], scanned[0].histogram(kind))
    hasher = xxhash.xxh3_128()
    tally = FloatTally(layout)
    moments = FloatMoments(layout)
    for chunk in blocks(flat, CHUNK):
        hasher.update(chunk.data)
        for finite in tally.add(chunk, kind):
            moments.add(finite)
    return ArraySummary(hasher.digest(), *moments.result(), tally.histogram(kind))


def _of_integers(flat: np.ndarray[Any, Any], kind: DType) -> ArraySummary:
    hasher = xxhash.xxh3_128()
    tally = IntegerTally()
    moments = IntegerMoments()
    for block in blocks(flat):
        hasher.update(block.data)
        values = elements(block, kind)
        tally.add(values)
        moments.add(values)
    return ArraySummary(hasher.digest(), *moments.result(), tally.histogram())
