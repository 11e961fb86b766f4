"""The log2 histograms of a page: bins of all records, added up by line and window of steps.

A line is the records of one name, kind, mode and phase; a window is some adjacent steps. The bin of
exponent e counts the elements x with 2^e <= |x| < 2^(e+1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anchorlib.reading import Series
from anchorlib.report.run_view import Bins
from anchorlib.store import OFFSET, SPAN
from anchorlib.summary import added_up

__all__ = ["BinCache", "binned"]

Array = np.ndarray[Any, Any]
Key = tuple[str, str, str, str]
Source = tuple[Key, int, Series, int]


class BinCache:
    """The histograms counted so far, by rank and by line (name, kind, mode, phase) of the page.

    A run that is still recorded grows at its end only. So a page that is made again with the same
    cache counts only the new records.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Key, int], tuple[Array, Array, Array, Array]] = {}

    def pairs(self, key: Key, rank: int, series: Series) -> tuple[Array, Array, Array]:
        """Return three parallel arrays over every bin of every record: (record, exponent, count).

        Each entry says that `count` elements of record `record` (its index in the series) are in
        the bin of `exponent`. Bins that an earlier call counted for `key` and `rank` are taken from
        the cache if the series still begins with the same records; else all are counted anew.

        key: the name, kind, mode and phase of the records.
        """
        order = series.columns["order"]
        held = self._held.get((key, rank))
        if held is None or len(held[0]) > len(order) or (held[0] != order[: len(held[0])]).any():
            held = (order[:0], *_no_pairs())
        if len(held[0]) < len(order):
            known = len(held[0])
            places, *fresh = series.bins(known)
            records, exponents, counts = (
                np.concatenate([old, new])
                for old, new in zip(held[1:], (places + known, *fresh), strict=True)
            )
            held = (order, records, exponents, counts)
            self._held[key, rank] = held
        return held[1:]


def _no_pairs() -> tuple[Array, Array, Array]:
    return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)


def binned(
    sources: Sequence[Source],
    steps: Array,
    width: int,
    lines: int,
    *,
    cache: BinCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Bins:
    """Return the histograms of `sources`, added up by line and by window of `width` adjacent steps.

    A line is the records of one name, kind, mode and phase, a row of the page.
    sources: for each series, (the key of its line, its rank, the series, the index of its line).
    steps: all steps of the run, ascending. lines: how many lines there are.
    cache: histograms that are known already; those counted here are added to it.
    progress: called after each source with (number of sources counted, number of all sources).
    """
    cache = cache or BinCache()
    windows = -(-len(steps) // width) if len(steps) else 0
    keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    infinite = np.zeros(lines * windows, np.int64)
    for done, (key, rank, series, line) in enumerate(sources):
        record, exponent, count = cache.pairs(key, rank, series)
        window = np.searchsorted(steps, series.columns["step"]) // width
        np.add.at(infinite, line * windows + window, series.columns["inf"])
        cell = line * windows + window[record]
        # Each source is summed by itself: the bins of all records of a run might not fit in memory.
        summed = added_up(cell * SPAN + exponent + OFFSET, count)
        keys.append(summed[0])
        counts.append(summed[1])
        if progress is not None:
            progress(done + 1, len(sources))
    key_, count_ = added_up(np.concatenate(keys), np.concatenate(counts))
    starts = np.searchsorted(key_ // SPAN, np.arange(lines * windows + 1))
    return Bins(width, windows, starts, key_ % SPAN - OFFSET, count_, infinite)
