"""Which rows of a rank's table belong to which series; indexes of a run's ranks, kept in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.store import RankReader, SeriesEntry, visible_rows

__all__ = ["RankIndex", "RankIndexes"]

Array = np.ndarray[Any, Any]


class RankIndex:
    """The visible row numbers of one rank, grouped by series.

    Of rows that a resumed run recorded again, only the later ones are visible. An index does not
    grow: `RankIndexes` makes a new index when more records were committed.

    attempts: whether all rows are visible instead, also those that were recorded again later.

    series: the catalogue entries of the series that have records, in order of their first records.
    """

    def __init__(self, reader: RankReader, *, attempts: bool = False) -> None:
        self.reader = reader
        self.version = reader.version
        rows = visible_rows(reader, attempts=attempts)
        owner = reader.series_ids[rows]
        order = np.argsort(owner, kind="stable")
        self._rows = rows[order]
        # The catalogue of a live run grows ahead of its rows: series added to it later are not
        # indexed here.
        self._entries = list(reader.catalogue.series)
        self._starts = np.searchsorted(owner[order], np.arange(len(self._entries) + 1))
        held = np.flatnonzero(np.diff(self._starts))
        first = reader.column("order")[self._rows[self._starts[held]]]
        numbers = held[np.argsort(first, kind="stable")].tolist()
        self.series = [self._entries[number] for number in numbers]
        self._of_tensor: dict[tuple[str, str], list[SeriesEntry]] = {}
        for entry in self.series:
            self._of_tensor.setdefault((entry.name, entry.kind), []).append(entry)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the row numbers of this index take."""
        return self._rows.nbytes

    def of_tensor(self, name: str, kind: str) -> list[SeriesEntry]:
        """Return the catalogue entries of one tensor and kind, one for each mode; [] for none."""
        return self._of_tensor.get((name, kind), [])

    def rows(self, entry: SeriesEntry) -> Array:
        """Return the row numbers of a series in order of execution.

        Empty for a series that was added to the catalogue after this index was made.
        """
        if entry.id >= len(self._entries):
            return self._rows[:0]
        rows: Array = self._rows[self._starts[entry.id] : self._starts[entry.id + 1]]
        return rows

    def laid_out(self) -> tuple[Array, Array]:
        """Return (row numbers of all series, concatenated; where each series begins in them).

        The series have the order of `series`, of which there must be at least one.
        """
        parts = [self.rows(entry) for entry in self.series]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts[:-1])])

    def first_order(self, entry: SeriesEntry) -> int:
        """Return the execution order (`Record.order`) of a series' first record."""
        return int(self.reader.column("order")[self.rows(entry)[0]])


class RankIndexes:
    """The indexes of one run's ranks; an index is made again once more records were committed."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, bool], _CacheEntry] = {}

    def of(self, reader: RankReader, *, attempts: bool = False) -> RankIndex:
        """Return the index of a rank: the row numbers that `reader` knows by now, by series.

        The index is kept, and its size counted, in the same cache as the reader's columns
        (`reader.column_memory`), where the reader has one.

        attempts: whether to include records that were recorded again after a resume.
        """
        known = self._entries.get((reader.rank, attempts))
        index = None if known is None else known.index
        if index is None or index.reader is not reader or index.version != reader.version:
            index = RankIndex(reader, attempts=attempts)
            entry = self._entries[reader.rank, attempts] = _CacheEntry(index)
            if reader.column_memory is not None:
                reader.column_memory.take(entry, index.nbytes)
        return index


class _CacheEntry:
    """A cache entry that refers to a rank's index until the cache needs the memory.

    The reader's cache then calls `let_go`, after which `index` is None. Code that is just using the
    index has a separate reference to it, and so is not disturbed.
    """

    def __init__(self, index: RankIndex) -> None:
        self.index: RankIndex | None = index

    def let_go(self) -> None:
        self.index = None
