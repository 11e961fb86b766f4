"""The summaries of many records as columns: one pass over all their elements together.

To summarise one array of ten elements takes some twenty calls of numpy and half a dozen objects,
each of which costs as much as a thousand elements. Here the elements of many arrays lie in one
block, each call serves all of them, and no object is made for a record. The figures equal those of
`summarise` bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xxhash

from anchorlib import dtypes
from anchorlib.summary.compiled import SCANS, Pieces
from anchorlib.summary.float_bits import BLOCK, SINGLE, elements, layout_of, parts
from anchorlib.summary.rows import ArraySummary, summarise

if TYPE_CHECKING:
    from anchorlib.dtypes import DType

__all__ = ["Figures", "figures_of"]

Array: TypeAlias = np.ndarray[Any, Any]
Buffer: TypeAlias = bytes | memoryview

SMALL = 4096
"""Arrays of up to so many elements count as small: they are summarised together with others."""

FEW = 3
"""Up to so many small arrays of one dtype are summarised singly, which is faster for so few."""

TOGETHER = 256
"""The most arrays in one pass: their exponent counters fill half a megabyte."""

_DIGEST_BYTES = 16
_MOMENTS = ("min", "max", "sum", "l2")
_COUNTS = ("zero", "nan", "inf", "subnormal")


@dataclass(frozen=True, slots=True)
class Figures:
    """The summaries of n records, column by column.

    digest: shape (n, 2), the big-endian halves of the xxh3-128 hash of each record's values.
    columns: name → array of n entries: min, max, sum, l2 (float64), zero, nan, inf, subnormal
        (uint64), and bins (int64), the number of bins of each record's histogram.
    exponents, elements: exponent (int16) and count (uint64) of each histogram bin, record after
        record.
    """

    digest: Array
    columns: dict[str, Array]
    exponents: Array
    elements: Array


def figures_of(
    values: Sequence[Buffer], layout: Array, layouts: Sequence[tuple[str, int]]
) -> Figures:
    """Compute the summaries of many arrays, as columns; small arrays are summarised together.

    values: the raw storage of each array, in C order.
    layout: for each array, the index of its layout in `layouts`.
    layouts: (dtype by torch's name, number of elements) of each layout.

    Raises UnknownDTypeError for an unknown dtype.
    """
    made = _Made(len(values))
    kinds = [dtypes.dtype(name) for name, _ in layouts]
    alone = np.ones(len(values), bool)
    with np.errstate(all="ignore"):  # as in `summarise`
        for kind, places, sizes in _small(layout, layouts, kinds):
            alone[places] = False
            for first, last in _groups(sizes):
                group = places[first:last]
                odd = made.add_floats(group, [values[at] for at in group], sizes[first:last], kind)
                alone[odd] = True
    for at in np.flatnonzero(alone).tolist():
        storage = kinds[layout[at]].storage
        raw = np.frombuffer(values[at], storage) if len(values[at]) else np.empty(0, storage)
        made.add(at, summarise(raw, kinds[layout[at]].name))
    return made.figures()


def _small(
    layout: Array, layouts: Sequence[tuple[str, int]], kinds: Sequence[DType]
) -> Iterator[tuple[DType, Array, Array]]:
    """Yield (dtype, indices of its small arrays, their sizes) for each dtype; the sizes ascend.

    Small arrays have 1 to SMALL elements. Only dtypes that are scanned as float32 are yielded, and
    of these only dtypes with more than FEW small arrays; all other arrays are left to the caller.
    The yielded indices and sizes are two arrays; a complex element counts as two in the sizes.
    layout, layouts: as in `figures_of`. kinds: the dtype of each of `layouts`.
    """
    for name in dict.fromkeys(name for name, _ in layouts):
        kind = dtypes.dtype(name)
        if layout_of(kind) is not SINGLE:
            continue
        sizes = np.array(
            [size if one is kind else 0 for one, (_, size) in zip(kinds, layouts, strict=True)]
        )
        mine = sizes[layout]
        places = np.flatnonzero((mine > 0) & (mine <= SMALL))
        if len(places) > FEW:
            places = places[np.argsort(mine[places], kind="stable")]
            yield kind, places, mine[places] * (2 if kind.family == "complex" else 1)


def _groups(sizes: Array) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of groups of neighbouring arrays that are summarised in one pass.

    sizes: the number of elements of each array. A group has at most BLOCK elements, and at most
    TOGETHER arrays. `last` is exclusive.
    """
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = min(int(np.searchsorted(ends, before + BLOCK, "right")), first + TOGETHER)
        yield first, last
        first = last


class _Made:
    """Collects the summaries of `rows` records as columns; the rows are filled in any order."""

    def __init__(self, rows: int) -> None:
        self._digests = np.empty((rows, _DIGEST_BYTES), np.uint8)
        self._columns = {name: np.empty(rows, np.float64) for name in _MOMENTS}
        self._columns |= {name: np.zeros(rows, np.uint64) for name in _COUNTS}
        self._columns["bins"] = np.zeros(rows, np.int64)
        self._pairs: list[tuple[Array, Array, Array]] = []  # whose, exponents, elements

    def add(self, at: int, summary: ArraySummary) -> None:
        """Write the summary of one array into row `at`."""
        columns, histogram = self._columns, summary.histogram
        self._digests[at] = np.frombuffer(summary.digest, np.uint8)
        for name in _MOMENTS:
            columns[name][at] = getattr(summary, name)
        for name in _COUNTS:
            columns[name][at] = getattr(histogram, name)
        columns["bins"][at] = size = len(histogram.bins)
        exponents, counts = list(histogram.bins), list(histogram.bins.values())
        self._pairs.append((np.full(size, at), np.array(exponents, int), np.array(counts, int)))

    def add_floats(
        self, places: Array, values: Sequence[Buffer], sizes: Array, kind: DType
    ) -> Array:
        """Fill the rows `places` with the summaries of arrays of at most BLOCK elements together.

        values, sizes, kind: raw storage, number of elements, and dtype of these arrays.
        Returns the rows of arrays with a NaN, an infinity or a subnormal float32: these rows are
        filled wrongly, and the caller has to summarise their arrays singly.
        """
        flat, real = parts(np.frombuffer(b"".join(values), kind.storage), kind)
        pieces = (SCANS.pieces or _pieces)(
            elements(flat, real), np.concatenate([[0], sizes.cumsum()])
        )
        digests = b"".join(map(xxhash.xxh3_128_digest, values))
        self._digests[places] = np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES)
        columns = self._columns
        for name, end in (("min", pieces.low), ("max", pieces.high)):
            columns[name][places] = _ordered(end).view(SINGLE.floating)
        columns["sum"][places] = 0.0 + pieces.sums
        columns["l2"][places] = np.sqrt(pieces.squares)
        columns["zero"][places] = pieces.counts[:, 0]
        self._add_histograms(places, pieces, real)
        return places[pieces.odd]

    def _add_histograms(self, places: Array, pieces: Pieces, kind: DType) -> None:
        """Add the histograms of the arrays in the rows `places`.

        Arrays with a NaN, an infinity or a subnormal float32 (`pieces.odd`) are left out, so that
        exponent field 0 counts zeros alone: their rows of `pieces.counts` are set to 0 in place.
        """
        if pieces.odd.any():
            pieces.counts[pieces.odd] = 0
        used = np.flatnonzero(pieces.counts)
        rows, fields = np.divmod(used, SINGLE.fields)
        binned = (fields > 0) & (fields < SINGLE.fields - 1)
        rows, exponents = rows[binned], fields[binned] - SINGLE.bias
        numbers = pieces.counts.reshape(-1)[used[binned]]
        self._columns["bins"][places] = np.bincount(rows, minlength=len(places))
        self._pairs.append((places[rows], exponents, numbers))
        limit = kind.smallest_normal_exponent
        if limit is not None and limit > 1 - SINGLE.bias:
            below = exponents < limit
            subnormal = np.bincount(rows[below], numbers[below], len(places))
            self._columns["subnormal"][places] = subnormal.astype(np.uint64)

    def figures(self) -> Figures:
        """Return the filled columns, with the histograms in the order of the rows."""
        digest = self._digests.view(">u8")
        if not self._pairs:
            return Figures(digest, self._columns, np.empty(0, "<i2"), np.empty(0, np.uint64))
        whose, exponents, counts = (
            np.concatenate(column) for column in zip(*self._pairs, strict=True)
        )
        order = np.argsort(whose, kind="stable")
        return Figures(
            digest,
            self._columns,
            exponents[order].astype("<i2"),
            counts[order].astype(np.uint64),
        )


def _pieces(values: Array, bounds: Array) -> Pieces:
    """Return the figures of many small float32 arrays, computed with numpy.

    `SCANS.pieces` is a compiled function that returns the same figures, bit for bit.
    values: the elements of all arrays, end to end. bounds: where each array begins, and then where
    the last array ends.
    """
    starts, sizes = bounds[:-1], np.diff(bounds)
    patterns = values.view(SINGLE.unsigned)
    fields = (patterns >> SINGLE.mantissa).astype(np.int64) & (SINGLE.fields - 1)
    fields += np.repeat(np.arange(sizes.size) * SINGLE.fields, sizes)
    counts = np.bincount(fields, minlength=sizes.size * SINGLE.fields)
    counts = counts.reshape(sizes.size, SINGLE.fields)
    odd = counts[:, -1] > 0
    if counts[:, 0].any():
        # The shift drops the sign. Zero less one wraps to the largest number, and does not count.
        subnormal = (patterns << 1) - 1 < (2 << SINGLE.mantissa) - 1
        odd |= np.logical_or.reduceat(subnormal, starts)
    ordered = _ordered(values.view(SINGLE.signed))
    low, high = np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts)
    wide = values.astype(np.float64)
    sums = _sums(wide, sizes)
    return Pieces(counts, odd, low, high, sums, _sums(np.square(wide, out=wide), sizes))


def _ordered(patterns: Array) -> Array:
    """Convert float32 bit patterns (int32) to integers that are ordered as the floats are.

    Given such integers, the function returns the bit patterns: it is its own inverse.
    """
    ordered: Array = patterns ^ ((patterns >> 31) & 0x7FFFFFFF)
    return ordered


def _sums(wide: Array, sizes: Array) -> Array:
    """Return the sum of each array; neighbouring arrays of one size are summed in one call.

    wide: the elements of all arrays, end to end. sizes: the number of elements of each.
    `np.add.reduceat` adds in another order than `sum`, and its last bits differ.
    """
    sums: list[Array] = []
    start = 0
    cuts = np.flatnonzero(np.diff(sizes)) + 1
    for alike in np.split(sizes, cuts):
        end = start + len(alike) * alike[0]
        sums.append(wide[start:end].reshape(len(alike), alike[0]).sum(axis=1))
        start = end
    return np.concatenate(sums)
