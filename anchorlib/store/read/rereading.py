"""Turns stored rows back into the `Record` objects that were written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from anchorlib.record import Coordinates, Flag, Record
from anchorlib.store.read.rank import RankReader
from anchorlib.summary import ArraySummary

__all__ = ["stored_records"]

Array = np.ndarray[Any, Any]
_FLAGS: Final = sum(Flag)
_COLUMNS: Final = [
    "series",
    "form",
    "step",
    "pass_index",
    "call",
    "phase",
    "attempt",
    "order",
    "time_ns",
    "digest_high",
    "digest_low",
    "min",
    "max",
    "sum",
    "l2",
    "count",
    "flags",
    "scale",
]


def stored_records(reader: RankReader, rows: Array, kept: Array | None = None) -> Iterator[Record]:
    """Yield the records that were written as these rows, in the order of `rows`.

    rows: row numbers of the rank's table. kept: a bool for each of `rows`, whether its stored
        values are read; None reads all stored values. A yielded record whose stored values were
        not read has the flag VALUE_DROPPED.

    Raises DamagedError where rows or values do not fit their checksums.
    """
    catalogue = reader.catalogue
    histograms = reader.histograms(rows)
    shapes = reader.shapes(rows)
    stored = reader.kept(rows)
    wanted = stored if kept is None else stored & kept
    table = {name: reader.column(name)[rows].tolist() for name in _COLUMNS}
    for at, row in enumerate(rows.tolist()):
        cell = {name: column[at] for name, column in table.items()}
        series = catalogue.series[cell["series"]]
        where = Coordinates(
            cell["step"], cell["pass_index"], cell["call"], catalogue.phases[cell["phase"]]
        )
        digest = cell["digest_high"].to_bytes(8, "big") + cell["digest_low"].to_bytes(8, "big")
        flags = Flag(cell["flags"] & _FLAGS)
        yield Record(
            series.name,
            series.kind,
            series.mode,
            where,
            cell["order"] - catalogue.attempts[cell["attempt"]].order_base,
            cell["time_ns"],
            catalogue.forms[cell["form"]].dtype,
            tuple(shapes[at]),
            reader.raw(row) if wanted[at] else None,
            ArraySummary(digest, cell["min"], cell["max"], cell["sum"], cell["l2"], histograms[at]),
            cell["count"],
            reader.rank,
            flags if wanted[at] == stored[at] else flags | Flag.VALUE_DROPPED,
            cell["scale"],
        )
