"""Where a copy of a live rank ends: files of one moment beside files of another.

A copy takes a while. Rows that were committed before it began are whole in it. Of those that came
meanwhile some files are older than others: a column, or values, read as zeros there. So the rows
from the first such one on are left out, and what is before it is the run up to a commit.

Only a rank that was never closed and that nobody writes is looked at, its last rows and the last
values of each form; one that was left by a dead process has no such rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.store.format import COLUMNS, rank_name
from anchorlib.store.locations import Location, Within
from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.remnants import Remnants
from anchorlib.store.stored import RowChecks

__all__ = ["whole_rows"]

_PART: Final = 4096  # rows looked at together, from the end on
_NEVER_ZERO: Final = ("check", "time_ns", "count")
_TAIL: Final = 8  # bytes at the end of values


def whole_rows(run: Location, reader: RankReader) -> int:
    """How many rows of this rank are before the first that a copy has in part."""
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
        found = checks.unfit(np.arange(start, stop))
        unfit = found + unfit
        if not found:
            break
        stop = start
    if not unfit or unfit[-1] != rows - 1:
        return rows
    # The longest end of which at least every second row is torn: one before it was damaged.
    places = np.array(unfit)
    share = (len(places) - np.arange(len(places))) / (rows - places)
    first = int(places[int(np.flatnonzero(share >= 0.5)[0])])
    return first if rows - first > 1 or _lacks_column(reader, first, rows) else rows


def _lacks_column(reader: RankReader, first: int, stop: int) -> bool:
    """Whether a column of these rows was not written yet."""
    for name in COLUMNS:
        if name == "seq" or reader.span(name, first, stop).any():
            continue
        before = reader.span(name, max(first - _PART, 0), first)
        if name in _NEVER_ZERO or before.any():
            return True
    return False


def _torn_values(reader: RankReader, rows: int) -> int:
    """The first row, from the end on, of which values were not written yet; `rows` if none."""
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
    """Of the values of a row: "whole", "torn", or "zero" where a hole would read the same."""
    try:
        value = reader.unchecked(row)
    except (StoreError, ValueError, OverflowError, MemoryError):
        return "torn"
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if not reader.unfit(np.array([row]), value[None]):
        return "whole" if data.any() else "zero"
    # What was damaged otherwise is told by whoever reads it.
    return "whole" if data[-_TAIL:].any() else "torn"
