"""Finds the last complete row of a copy that was made while its rank was being written.

A copy takes a while. Rows that were committed before it began are complete in the copy. Rows that
were committed meanwhile are in the files copied late and not in those copied early: some of their
columns, or their values, read as zeros. So the first such row and all later rows are left out, and
the rows before it are the run as it was at some commit.

Only a rank that was never closed and that nobody writes is examined: its last rows, and the last
values of each form (records of one dtype and shape). A rank that a dead process left behind has no
incomplete rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.store.format import COLUMNS, HIST_COLUMNS, MOST_BINS, rank_name
from anchorlib.store.locations import Location, Within
from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.remnants import Remnants
from anchorlib.store.stored import RowChecks, StoredRows

__all__ = ["whole_rows"]

_PART: Final = 4096  # rows examined at a time, from the end backwards
_NEVER_ZERO: Final = ("check", "time_ns", "count", "hist_count")
_TAIL: Final = 8  # bytes at the end of a record's values that tell whether they were copied


def whole_rows(run: Location, reader: RankReader) -> int:
    """Return how many rows of this rank come before the first row that was copied incompletely.

    If no row was copied incompletely, the result is the number of all committed rows; also for a
    rank of format 1, which is not examined.
    """
    if reader.catalogue.version == 1 or not reader.committed:
        return reader.committed
    remnants = Remnants(run, reader.rank, reader.part)
    copied = RankReader(remnants, reader.rank, part=reader.part)
    rows = min(reader.committed, copied.committed)
    rows = _torn_rows(Within(remnants, rank_name(reader.rank, reader.part)), copied, rows)
    return _torn_values(copied, rows)


def _torn_rows(rank: Location, reader: RankReader, rows: int) -> int:
    checks = RowChecks(rank, reader)
    unfit: list[int] = []
    stop = rows
    while stop:
        start = max(stop - _PART, 0)
        torn = checks.unfit(np.arange(start, stop))
        unfit = torn + unfit
        if not torn:
            break
        stop = start
    # The torn end is the longest one in which at least every second row does not fit. A row before
    # it that does not fit was damaged in another way.
    places = np.array(unfit)
    share = (len(places) - np.arange(len(places))) / (rows - places)
    ends = np.flatnonzero(share >= 0.5)
    if not len(ends):
        return rows
    first = int(places[ends[0]])
    # A torn row fits where its values are zero in all columns that were copied too early, and the
    # last row may be such a row.
    is_last = unfit[-1] == rows - 1
    if is_last and rows - first > 1:
        return first
    is_torn = (is_last or len(places) - ends[0] > 1) and _lacks_column(rank, reader, first, rows)
    return first if is_torn else rows


def _lacks_column(rank: Location, reader: RankReader, first: int, stop: int) -> bool:
    """Return whether some column was copied before rows `first` to `stop` - 1 were written to it.

    In such a column the entries of all these rows are 0, and `_ends` says that they are missing.
    In the columns of histogram bins, the entries that these rows refer to are examined.
    rank: the location of the rank that `reader` reads.
    """
    for name in COLUMNS:
        if name != "seq" and _ends(StoredRows(rank, f"records/{name}", COLUMNS[name]), first, stop):
            return True
    offsets, lengths = (reader.span(name, first, stop) for name in ("hist_offset", "hist_length"))
    stored = (lengths > 0) & (lengths <= MOST_BINS) & (offsets >= 0)
    if not stored.any():
        return False
    start = int(offsets[stored][0])
    end = min(int((offsets + lengths)[stored].max()), start + _PART)
    return any(
        _ends(StoredRows(rank, f"records/{name}", dtype), start, end)
        for name, dtype in HIST_COLUMNS.items()
    )


def _ends(column: StoredRows, start: int, stop: int) -> bool:
    """Return whether entries `start` to `stop` - 1 of a column are all 0 because they are missing.

    Zeros count as missing in columns in which a writer never writes 0, and in other columns if the
    entries just before `start` are not all 0.
    """
    if column.span(start, stop).any():
        return False
    name = column.key.rpartition("/")[2]
    return name in _NEVER_ZERO or bool(column.span(max(start - _PART, 0), start).any())


def _torn_values(reader: RankReader, rows: int) -> int:
    """Return the first row whose values were copied too early; `rows` where there is none.

    The rows of each form (records of one dtype and shape) are examined from the last row backwards,
    until a row is met whose values are certainly complete: "whole", as `_state` says.
    rows: only this many rows, from the first on, are examined.
    """
    every = np.arange(rows)
    kept = every[reader.kept(every)]
    forms = reader.column("form")[kept]
    first = rows
    for number in np.unique(forms).tolist():
        for row in kept[forms == number][::-1].tolist():
            state = _state(reader, row)
            if state == "torn":
                first = min(first, row)
            elif state == "whole":
                break
    return first


def _state(reader: RankReader, row: int) -> str:
    """Return the state of a row's values: "whole", "torn" (copied too early), or "zero".

    "zero" values are all 0 and fit their digest. Bytes that the copy lacks read as zeros too, so
    such a row does not show that the rows before it are complete. Values that cannot be read are
    "torn". Values that do not fit their digest are "torn" if their last bytes are all 0, else
    "whole": they were copied completely, and damaged otherwise.
    """
    try:
        value = reader.unchecked(row)
    except (StoreError, ValueError, OverflowError, MemoryError):
        return "torn"
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if not reader.unfit(np.array([row]), value[None]):
        return "whole" if data.any() else "zero"
    # Values that are damaged but end in other bytes than zeros were copied whole: the damage is
    # reported when they are read.
    return "whole" if data[-_TAIL:].any() else "torn"
