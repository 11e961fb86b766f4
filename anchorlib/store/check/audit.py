"""Compares one rank with its checksums: rows, labels, and the bytes behind the last row.

Values are not read here: readers compare them with their digests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from anchorlib.store.check.archived_digests import rank_digest_faults
from anchorlib.store.check.documents import document_faults
from anchorlib.store.format import (
    CATALOG_CHUNK,
    COLUMNS,
    ROWS_PER_CHUNK,
    chunk_key,
    is_sound,
    whole_lines,
)
from anchorlib.store.locations import Location
from anchorlib.store.read import RankReader
from anchorlib.store.seal import SealedRank, rank_location
from anchorlib.store.stored import RowChecks, StoredForm, committed_rows

__all__ = ["RankAudit"]

_PART: Final = 4096  # rows compared at a time


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking some rows.

    bad: numbers of the rows that do not fit their checksums.

    labels: numbers of the rows whose labels differ from the row. Labels are copies of the row's
        series, step, pass and call that are stored beside the values, for xarray.

    unchecked: how many rows have no checksum.
    """

    bad: list[int]
    labels: list[int]
    unchecked: int


class RankAudit:
    """Compares one rank of the run at location `run` with its checksums.

    reader: reads the rank; it is refreshed.
    """

    def __init__(self, run: Location, reader: RankReader) -> None:
        self._run = run
        self._location = rank_location(run, reader.rank, reader.part)
        self._reader = reader
        # Rows are counted before the refresh: those that a live writer adds between the two calls
        # would otherwise look like rows that cannot be read.
        self._counted = committed_rows(self._location, "records")
        reader.refresh()
        self._checks = RowChecks(self._location, reader)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) for portions of the rank's rows, each small enough for `rows`.

        A portion has the rows `start` to `stop` - 1.
        """
        for start in range(0, self._reader.committed, _PART):
            yield start, min(start + _PART, self._reader.committed)

    def rows(self, start: int, stop: int) -> Checked:
        """Compare the rows `start` to `stop` - 1 with checksums and labels; return the result.

        Labels are copies of a row's series, step, pass and call beside the record's values. Raises
        StoreError where a column cannot be read.
        """
        bad = self._checks.unfit(np.arange(start, stop))
        checked = self._reader.catalogue.checked
        unchecked = (stop if checked is None else min(max(checked, start), stop)) - start
        return Checked(bad, self._labels(start, stop, bad), unchecked)

    def faults(self) -> Iterator[str]:
        """Yield in words what is wrong with the rank as a whole.

        The checks are: all committed rows can be read; the catalogue ends with a complete or a
        cut-off line; the zarr.json files of a rank in a store, or the objects and index of an
        archived rank, are as they should be.
        """
        reader = self._reader
        published = reader.catalogue.published
        counted = self._counted
        if reader.committed < max(published, counted):
            most = max(published, counted)
            yield f"{most - reader.committed} of {most} rows cannot be read any more"
        if behind := self._behind(counted):
            yield f"row {counted} says it is none, but {behind} come after it"
        if self._stray():
            yield "the catalogue goes on behind its end"
        is_live = not isinstance(self._location, SealedRank)
        faults = [*document_faults(self._location, reader)] if is_live else []
        # The run may have left for its archive since it was opened: there the rank has no documents
        # of a live rank, and its sealed objects are what counts.
        now = rank_location(self._run, reader.rank, reader.part)
        if isinstance(now, SealedRank):
            faults = [*now.faults(), *rank_digest_faults(self._run, reader)]
        yield from faults

    def _labels(self, start: int, stop: int, but: list[int]) -> list[int]:
        reader = self._reader
        stop = max(start, min(stop, reader.catalogue.published))
        bad: set[int] = set()
        numbers, places = reader.span("form", start, stop), reader.span("row", start, stop)
        # Form and place of a bad row cannot be trusted, so its labels are not looked up.
        fit = ~np.isin(np.arange(start, stop), but) & (places >= 0)
        for number in np.unique(numbers[fit]).tolist():
            own = np.flatnonzero((numbers == number) & fit)
            stored = StoredForm(self._location, reader.catalogue.forms[number])
            for name, _ in stored.entry.labels:
                due_labels = reader.span(name, start, stop)[own]
                stored_labels = stored.label(name, places[own])
                bad.update((start + own[stored_labels != due_labels]).tolist())
        return sorted(bad)

    def _behind(self, counted: int) -> int:
        """Return how many rows behind row `counted`, in its chunk, are committed; 0 if all is well.

        A live writer may commit further rows while they are read here. So they are read twice, and
        the result is 0 unless row `counted` is uncommitted both times.

        counted: how many rows were committed at the beginning, so also the number of the first row
            that was not.
        """
        for _ in range(2):
            chunk, slot = divmod(counted, ROWS_PER_CHUNK)
            key = f"records/seq/{chunk_key(chunk, 0)}"
            width = COLUMNS["seq"].itemsize
            room = (ROWS_PER_CHUNK - slot) * width
            data = self._location.get(key, slot * width, room) or b""
            seq = np.frombuffer(data[: len(data) // 8 * 8], COLUMNS["seq"])
            due = np.arange(counted + 1, counted + 1 + len(seq), dtype=np.uint64)
            fit = seq == due
            if not fit.any() or fit[0]:
                return 0
        return int(fit.sum())

    def _stray(self) -> bool:
        """Return whether anything but an incomplete line follows the last line of the catalogue.

        An incomplete line is one that the writer has not finished, or that a crash cut off.
        """
        chunk, start = divmod(self._reader.catalogue_end, CATALOG_CHUNK)
        key = f"catalog/{chunk_key(chunk, 0)}"
        rest = self._location.get(key, start, CATALOG_CHUNK - start) or b""
        lines, end = whole_lines(rest)
        if lines:  # a live writer has written them since the refresh
            return False
        torn, _, behind = rest[end:].partition(b"\0")
        whole = bool(is_sound(torn)) or bool(is_sound(torn[:-1]))
        return whole or bool(behind.strip(b"\0"))
