"""Compares the rows of one rank, including their figures and histograms, with their checksums."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.store.format import (
    HIST_COLUMNS,
    MOST_BINS,
    ROW,
    ROW_1,
    columns_of,
    flat_seed,
    row_check,
)
from anchorlib.store.locations import Location
from anchorlib.store.stored.rank_rows import RankRows
from anchorlib.store.stored.rows import StoredRows
from anchorlib.store.stored.values import StoredForm

__all__ = ["RowChecks"]

Array = np.ndarray[Any, Any]
_PART: Final = 4096  # rows compared at a time
_AHEAD: Final = 1024
"""At least so many rows are compared at a time: for a few rows, most of the time goes into opening
the files of all columns, and whoever reads one series often reads the next one."""


class RowChecks:
    """Compares the rows of one rank with their checksums.

    location: where the rank is stored. reader: reads its committed rows.
    """

    def __init__(self, location: Location, reader: RankRows) -> None:
        self._location = location
        self._reader = reader
        self._seeds: dict[tuple[int, int], int] = {}
        self._fit = np.zeros(0, np.bool_)  # rows that were found to fit before

    def fresh_unfit(self, rows: Array) -> list[int]:
        """Return which of `rows` (row numbers) do not fit their checksum.

        Rows that an earlier call found to fit are not read again; rows without a checksum count as
        fitting. Raises StoreError where a column cannot be read.
        """
        if len(self._fit) < self._reader.committed:
            self._fit = np.pad(self._fit, (0, self._reader.committed - len(self._fit)))
        asked = rows[~self._fit[rows]]
        if not len(asked):
            return []
        judged = asked if len(asked) >= _AHEAD else self._with_next(asked)
        try:
            unfit = self.unfit(judged)
        except StoreError:  # perhaps caused by a row that the caller has not asked for
            judged, unfit = asked, self.unfit(asked)
        self._fit[judged] = True
        self._fit[unfit] = False
        wanted = set(asked.tolist())
        return [row for row in unfit if row in wanted]

    def _with_next(self, rows: Array) -> Array:
        """Return `rows` and some rows near them that are still unchecked, in ascending order.

        The rows added are those, of the 1024 rows from the lowest of `rows` on, that are not yet
        known to fit their checksums.
        """
        first = int(rows.min())
        fresh = np.flatnonzero(~self._fit[first : first + _AHEAD]) + first
        return np.union1d(rows, fresh)

    def unfit(self, rows: Array) -> list[int]:
        """Return which of `rows` (row numbers) do not fit their checksum; read all of them.

        Rows without a checksum count as fitting. Raises StoreError where a column cannot be read.
        """
        checked = self._reader.catalogue.checked
        own = rows[:0] if checked is None else rows[rows >= checked]
        unfit: list[int] = []
        for start in range(0, len(own), _PART):
            part = own[start : start + _PART]
            table = np.empty(len(part), self._row)
            for name in self._row.names or ():
                table[name] = self._column(name, part)
            made = zip(self._column("check", part).tolist(), self._each(table), strict=True)
            unfit += [
                row for row, (one, two) in zip(part.tolist(), made, strict=True) if one != two
            ]
        return unfit

    def _column(self, name: str, rows: Array) -> Array:
        dtype = columns_of(self._reader.catalogue.version)[name]
        return StoredRows(self._location, f"records/{name}", dtype).pick(rows)

    @property
    def _row(self) -> np.dtype[Any]:
        return ROW_1 if self._reader.catalogue.version == 1 else ROW

    def _each(self, table: Array) -> list[int | None]:
        """Return the checksum computed for each row of `table`.

        None stands for a row whose histogram cannot be read.
        """
        try:
            return self._checks(table)
        # With a damaged place or length numpy is asked for an array that cannot exist. Halving
        # finds the rows at fault.
        except (StoreError, ValueError, OverflowError, MemoryError, IndexError):
            if len(table) == 1:
                return [None]
            half = len(table) // 2
            return self._each(table[:half]) + self._each(table[half:])

    def _checks(self, table: Array) -> list[int | None]:
        packed, width = table.tobytes(), table.itemsize
        seeds, pairs = self._row_seeds(table), self._pairs(table)
        return [
            row_check(packed[at * width : (at + 1) * width] + pair, seed)
            for at, (pair, seed) in enumerate(zip(pairs, seeds, strict=True))
        ]

    def _row_seeds(self, table: Array) -> list[int]:
        catalogue = self._reader.catalogue
        form_of, series_of = catalogue.owners(table)
        pairs = zip(series_of.tolist(), form_of.tolist(), strict=True)
        seeds = [self._seed(*pair) for pair in pairs]
        for number in np.unique(form_of).tolist():
            form = catalogue.forms[number]
            if not form.flat:
                continue
            own = np.flatnonzero(form_of == number)
            stored = StoredForm(self._location, form)
            rows = table["row"][own]
            shapes, offsets = stored.shapes(rows).tolist(), stored.offsets(rows).tolist()
            for at, shape, offset in zip(own.tolist(), shapes, offsets, strict=True):
                seeds[at] = flat_seed(seeds[at], offset, shape)
        return seeds

    def _seed(self, series: int, form: int) -> int:
        if (series, form) not in self._seeds:
            self._seeds[series, form] = self._reader.catalogue.seed(series, form)
        return self._seeds[series, form]

    def _pairs(self, table: Array) -> list[bytes]:
        """Return the histogram of each row of `table` as bytes: its exponents, then its counts.

        Raises StoreError for a histogram with more bins than there can be, or one that cannot be
        read.
        """
        lengths = np.maximum(table["hist_length"], 0)
        if (lengths > MOST_BINS).any():
            raise StoreError("a histogram has more bins than there are exponents")
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(table["hist_offset"] - (ends - lengths), lengths)
        exponents, counts = (
            StoredRows(self._location, f"records/{name}", dtype).pick(places).tobytes()
            for name, dtype in HIST_COLUMNS.items()
        )
        return [
            exponents[2 * (end - length) : 2 * end] + counts[8 * (end - length) : 8 * end]
            for length, end in zip(lengths.tolist(), ends.tolist(), strict=True)
        ]
