"""Reads one rank of a run at a location: committed rows, and the catalogue that explains them.

A reader never repairs and never locks. It trusts the column `seq`, whose entries commit rows, and
complete catalogue lines, because a writer writes both only after everything that they refer to. The
methods that return shapes, values or histograms of rows are in `rank_table`.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import proxy

import numpy as np

from anchorlib.errors import DamagedError, RunNotFoundError
from anchorlib.operations import Entry
from anchorlib.store.format import (
    CATALOG_CHUNK,
    COLUMNS,
    HIST_COLUMNS,
    MOST_BINS,
    ROW_1,
    ROWS_PER_CHUNK,
    Catalogue,
    Form,
    chunk_key,
    whole_lines,
)
from anchorlib.store.locations import Location
from anchorlib.store.read.rank_table import RankTable
from anchorlib.store.seal import SealedRank, rank_location
from anchorlib.store.stored import (
    RowChecks,
    StoredForm,
    StoredRows,
    committed_rows,
    damage,
    operation_entries,
    removed_meanwhile,
)

__all__ = ["RankReader"]

Array = np.ndarray[Any, Any]
CATALOG_PART: Final = 1 << 20  # bytes of a catalogue that are parsed at a time


class RankReader(RankTable):
    """Columns, values and catalogue of one rank, as of the last `refresh`.

    run: the location of the run. name: the run's name in errors.
    part: the number of the part of the rank, where several collectors share it; else 0.

    asked: (run, store) as `find_run` was given them, by which another process can find the rank
        (`rank_handle`); None where the run was not found by name.
    """

    asked: tuple[str, str | None] | None = None

    def __init__(self, run: Location, rank: int, name: str = "", part: int = 0) -> None:
        self.run = name
        self.rank = rank
        self.part = part
        self._location = rank_location(run, rank, part)
        self.catalogue = Catalogue(rank)
        self.committed = 0
        self.left_out = 0  # rows that the copy of a live rank has in part, see `copied_tail`
        self._columns: dict[str, Array] = {}
        self._catalogue_end = 0
        self._first_line = b""
        # A proxy, so that no cycle keeps a replaced reader and its columns alive.
        self._row_checks = RowChecks(self._location, proxy(self))
        self.refresh()

    @property
    def is_current(self) -> bool:
        """Whether the rank was not overwritten or removed since this reader opened it."""
        head = self._location.get(f"catalog/{chunk_key(0, 0)}", 0, len(self._first_line))
        return head == self._first_line

    @property
    def is_sealed(self) -> bool:
        """Whether the rank was sealed, that is, archived as objects that never change."""
        return isinstance(self._location, SealedRank)

    def refresh(self) -> None:
        """Read the rows and catalogue lines that were committed since the last refresh.

        Raises RunNotFoundError where the rank has no catalogue, DamagedError for a damaged
        catalogue or table, StoreError where a newer anchorlib wrote the rank.
        """
        # Rows first: the catalogue lines of these rows are then written already.
        known = self.committed
        committed = committed_rows(self._location, "records", known)
        self._read_catalogue()
        self.committed = self._understood(known, committed)

    def end_at(self, rows: int) -> None:
        """Make the rank end before row number `rows`, because this and later rows are incomplete.

        It is for a copy that was made of a rank while the rank was being written.
        """
        self.left_out = self.committed - rows
        self.committed = rows

    def _understood(self, known: int, committed: int) -> int:
        # Power loss, unlike a kill, can keep a row and lose the catalogue line of its series or
        # form: rows end before the first such row.
        for start in range(known, committed, ROWS_PER_CHUNK):
            stop = min(start + ROWS_PER_CHUNK, committed)
            unknown = self.span("form", start, stop) >= len(self.catalogue.forms)
            unknown |= self.span("series", start, stop) >= len(self.catalogue.series)
            if unknown.any():
                return start + int(np.flatnonzero(unknown)[0])
        return committed

    def _read_catalogue(self) -> None:
        chunk, start = divmod(self._catalogue_end, CATALOG_CHUNK)
        rest = b""
        while part := self._catalogue_part(chunk, start):
            rest += part
            if part.endswith(b"\0"):
                break
            if len(rest) >= CATALOG_PART:
                rest = rest[self._understand(rest) :]
            chunk, start = chunk + 1, 0
        self._understand(rest)
        if not self._catalogue_end:
            raise RunNotFoundError(f"rank {self.rank} is not there (any more), or is no run's rank")

    def _understand(self, raw: bytes) -> int:
        """Add the complete lines at the start of `raw` to the catalogue.

        Return the offset in `raw` behind these lines.
        """
        lines, end = whole_lines(raw)
        self.catalogue.apply(lines)
        if lines and not self._catalogue_end:
            self._first_line = lines[0]
        self._catalogue_end += end
        return end

    def _catalogue_part(self, chunk: int, start: int) -> bytes | None:
        key = f"catalog/{chunk_key(chunk, 0)}"
        return self._location.get(key, start, CATALOG_CHUNK - start)

    @property
    def version(self) -> tuple[int, int]:
        """The pair (rows, bytes of the catalogue) at the last `refresh`; each commit changes it."""
        return (self.committed, self._catalogue_end)

    @property
    def catalogue_end(self) -> int:
        """The offset in bytes behind the last complete line of the catalogue."""
        return self._catalogue_end

    def span(self, name: str, start: int, stop: int) -> Array:
        """Return entries `start` to `stop` - 1 of the column `name`, without caching them.

        Raises DamagedError where entries are missing, RunNotFoundError if the rank is gone.
        """
        if self.catalogue.version == 1 and name in ("series", "form"):
            forms, series = self.catalogue.owners({"variant": self.span("variant", start, stop)})
            return forms if name == "form" else series
        dtype = ROW_1[name] if name == "variant" else COLUMNS[name]
        rows = StoredRows(self._location, f"records/{name}", dtype)
        try:
            return rows.span(start, stop)
        except DamagedError:
            if self.is_current:
                raise
            raise removed_meanwhile(self) from None

    def check_rows(self, rows: Array) -> None:
        """Raise DamagedError where one of the rows numbered `rows` does not fit its checksum.

        A row that was found to fit is not checked again.
        """
        for row in self._row_checks.fresh_unfit(rows)[:1]:
            raise damage(self, row, "they do not fit their checksum", "the figures")

    def operations(self, attempt: int | None = None) -> list[Entry]:
        """Return the log of traced operations; [] for none.

        attempt: None for all entries. A number is that of an attempt (what one writer recorded):
            then the result has the entries of this attempt and all structures, which are entries
            that describe consecutive operations once, so that entries of any attempt may refer to
            them.

        Raises DamagedError where the log is damaged.
        """
        entries, _ = operation_entries(self._location)
        return [
            entry
            for entry in entries
            if attempt is None or "structure" in entry or entry["attempt"] == attempt
        ]

    def _pairs(self, offsets: Array, lengths: Array) -> tuple[Array, Array]:
        """Return exponents and counts of the histogram pairs of some rows, as two flat arrays.

        A pair is a bin: (exponent, count). The pairs of the first row come first.
        offsets, lengths: for each row, the index of its first pair in the columns of pairs, and how
        many pairs it has (none if negative). Raises DamagedError where there are too many pairs, or
        they are missing.
        """
        stored = lengths > 0
        if (lengths > MOST_BINS).any():
            raise DamagedError(
                f"rank {self.rank} has a histogram of {lengths.max()} bins, more than there are "
                "exponents: the store was damaged from outside"
            )
        parts = zip(offsets[stored].tolist(), lengths[stored].tolist(), strict=True)
        places = [np.arange(offset, offset + length) for offset, length in parts]
        every = np.concatenate([np.empty(0, np.int64), *places])
        exponents, counts = (
            StoredRows(self._location, f"records/{name}", dtype).pick(every)
            for name, dtype in HIST_COLUMNS.items()
        )
        self._check_bound("hist_count", counts)
        return exponents, counts

    def _stored(self, form: Form) -> StoredForm:
        return StoredForm(self._location, form)
