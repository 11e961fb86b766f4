"""The summaries of many small arrays at once: one pass over all their elements together.

Summarising one array of ten elements is some twenty calls of numpy, each of which costs as much as
a thousand elements. Here the elements of many arrays lie in one block, and each call serves them
all; what comes out is `summarise`'s answer for each of them, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from anchorlib import dtypes
from anchorlib.summary.compiled import SCANS, Pieces
from anchorlib.summary.histogram import Log2Histogram
from anchorlib.summary.layouts import BLOCK, SINGLE, elements, layout_of, parts
from anchorlib.summary.rows import Summary, summarise

if TYPE_CHECKING:
    from anchorlib.dtypes import DType

__all__ = ["summarise_all"]

Array = np.ndarray[Any, Any]

SMALL = 4096
"""Elements up to which it pays to be summarised with others."""

FEW = 3
"""Arrays of one dtype up to which it does not."""

TOGETHER = 256
"""Arrays in one pass: their exponent counters fill half a megabyte."""


def summarise_all(arrays: Sequence[tuple[Array, str]]) -> list[Summary]:
    """`summarise(raw, dtype)` of each (raw, dtype), in order; raises what it raises."""
    found: list[Summary | None] = [None] * len(arrays)
    small: dict[str, list[int]] = {}
    for place, (raw, name) in enumerate(arrays):
        if 0 < raw.size <= SMALL:
            small.setdefault(name, []).append(place)
    for name, places in small.items():
        kind = dtypes.dtype(name)
        if len(places) <= FEW or layout_of(kind) is not SINGLE:
            continue
        places.sort(key=lambda place: arrays[place][0].size)
        for group in _groups(places, arrays):
            with np.errstate(all="ignore"):  # as in `summarise`
                together = _of_floats([arrays[place][0] for place in group], kind)
            for place, summary in zip(group, together, strict=True):
                found[place] = summary
    return [
        summarise(*arrays[place]) if summary is None else summary
        for place, summary in enumerate(found)
    ]


def _groups(places: list[int], arrays: Sequence[tuple[Array, str]]) -> Iterator[list[int]]:
    """Cuts into groups whose elements fit into one block, complex ones counted as two."""
    group: list[int] = []
    size = 0
    for place in places:
        more = 2 * arrays[place][0].size
        if group and (size + more > BLOCK or len(group) == TOGETHER):
            yield group
            group, size = [], 0
        group.append(place)
        size += more
    yield group


def _of_floats(raws: list[Array], kind: DType) -> list[Summary | None]:
    """The summaries; None where an array has a NaN, an infinity or a subnormal float32."""
    flat = [parts(_checked(raw, kind), kind)[0] for raw in raws]
    real = parts(raws[0], kind)[1]
    bounds = np.cumsum([0, *(part.size for part in flat)])
    values = elements(np.concatenate(flat), real)
    found = (SCANS.pieces or _pieces)(values, bounds)
    moments = _moments(found)
    histograms = _histograms(found.counts, real)
    return [
        None if is_odd else Summary(xxhash.xxh3_128_digest(part.data), *row, histogram)
        for is_odd, part, row, histogram in zip(
            found.odd.tolist(), flat, moments, histograms, strict=True
        )
    ]


def _checked(raw: Array, kind: DType) -> Array:
    """`raw`, which is the storage of `kind`; raises UnknownDTypeError if it is not."""
    dtypes.of_storage(raw, kind.name)
    return raw


def _pieces(values: Array, bounds: Array) -> Pieces:
    """What `SCANS.pieces` finds, by numpy."""
    starts, sizes = bounds[:-1], np.diff(bounds)
    patterns = values.view(SINGLE.unsigned)
    fields = (patterns >> SINGLE.mantissa).astype(np.int64) & (SINGLE.fields - 1)
    fields += np.repeat(np.arange(sizes.size) * SINGLE.fields, sizes)
    counts = np.bincount(fields, minlength=sizes.size * SINGLE.fields)
    counts = counts.reshape(sizes.size, SINGLE.fields)
    odd = counts[:, -1] > 0
    if counts[:, 0].any():
        # Without the sign, and less one: zero wraps round to the largest number.
        subnormal = (patterns << 1) - 1 < (2 << SINGLE.mantissa) - 1
        odd |= np.logical_or.reduceat(subnormal, starts)
    ordered = _ordered(values.view(SINGLE.signed))
    low, high = np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts)
    wide = values.astype(np.float64)
    sums = _sums(wide, sizes)
    return Pieces(counts, odd, low, high, sums, _sums(np.square(wide, out=wide), sizes))


def _ordered(patterns: Array) -> Array:
    """Integers that order as the floats of these bits do; of such integers, the bits."""
    ordered: Array = patterns ^ ((patterns >> 31) & 0x7FFFFFFF)
    return ordered


def _moments(found: Pieces) -> Iterator[tuple[float, float, float, float]]:
    """min, max, sum and l2 of each piece."""
    ends = [
        _ordered(end).view(SINGLE.floating).astype(np.float64) for end in (found.low, found.high)
    ]
    columns = (*ends, found.sums, found.squares)
    for low, high, total, square in zip(*(column.tolist() for column in columns), strict=True):
        yield low, high, 0.0 + total, math.sqrt(square)


def _sums(wide: Array, sizes: Array) -> Array:
    """The sum of each piece, pieces of one size together.

    Not by `np.add.reduceat`: it adds in another order than `sum` does, which its last bit shows.
    """
    found: list[Array] = []
    start = 0
    cuts = np.flatnonzero(np.diff(sizes)) + 1
    for alike in np.split(sizes, cuts):
        end = start + len(alike) * alike[0]
        found.append(wide[start:end].reshape(len(alike), alike[0]).sum(axis=1))
        start = end
    return np.concatenate(found)


def _histograms(counts: Array, kind: DType) -> Iterator[Log2Histogram]:
    """The histogram of each row of exponent counters, whose first counts zeros alone."""
    rows, fields = np.nonzero(counts[:, 1:-1])
    numbers = counts[rows, fields + 1].tolist()
    exponents = fields + 1 - SINGLE.bias
    ends = np.searchsorted(rows, np.arange(1, len(counts) + 1)).tolist()
    subnormal = [0] * len(counts)
    limit = kind.smallest_normal_exponent
    if limit is not None and limit > 1 - SINGLE.bias:
        below = exponents < limit
        subnormal = (
            np.bincount(rows[below], np.array(numbers)[below], len(counts)).astype(int).tolist()
        )
    bins, start = exponents.tolist(), 0
    for end, zero, low in zip(ends, counts[:, 0].tolist(), subnormal, strict=True):
        pairs = dict(zip(bins[start:end], numbers[start:end], strict=True))
        yield Log2Histogram(pairs, zero, 0, 0, low)
        start = end
