"""A damaged run examined row by row, and its undamaged rows copied into a new run.

Examined.of(run, name, 0) ─▶ which rows of rank 0 are sound, and which of them lost their values
salvage(store, …)         ─▶ a new run of the sound rows, which appears in the store once whole

A row is the entry of one record in its rank's table; a row is sound if it fits its checksum and the
name of its phase is not lost. An attempt is one recording of a rank. A rank's catalogue is the file
that lists its attempts, series and phases, with gaps and lineage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from anchorlib.block import block_of
from anchorlib.errors import AnchorError, DamagedError, StoreError
from anchorlib.names import check_run_name
from anchorlib.operations import Entry
from anchorlib.progress import Progress
from anchorlib.record import UNKNOWN, Gap
from anchorlib.store import (
    Location,
    RankReader,
    Remnants,
    RowChecks,
    Writer,
    end_copy,
    place_run,
    rank_location,
    run_directory,
    stored_records,
    unmade_store,
)

__all__ = ["Examined", "salvage"]

Array = np.ndarray[Any, Any]

ROWS_LOST: Final = "the row was damaged on disk"
VALUES_LOST: Final = "the values were damaged on disk"

_ROWS: Final = 1024
_BATCH_BYTES: Final = 32 << 20
_UNREADABLE: Final = (StoreError, ValueError, OverflowError, MemoryError, IndexError)


@dataclass(slots=True)
class Examined:
    """The damage of one rank, after its rows were compared with checksums, its values with digests.

    reader: reads what is left of the rank. sound: for each row of the rank, whether the row fits
        its checksum, and the name of its phase is not lost. kept: for each row, whether values are
        stored and fit their digest.
    problems: a sentence for each damage beside that of rows and values, such as a damaged
        catalogue.
    """

    reader: RankReader
    sound: Array
    kept: Array
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, run: Location, name: str, rank: int, progress: Progress = lambda *_: None
    ) -> Examined:
        """Read and check all rows and values of one rank of the run `name` at `run`.

        If the run was copied while it was being written, rows at the end that were copied only in
        part are left out.
        progress: called now and then with how many values were checked so far, and how many there
        are. Raises StoreError where the rank cannot be read at all.
        """
        reader, location, problems, lost_phases = _opened(run, rank)
        end_copy(run, name, reader)
        rows = np.arange(reader.committed)
        sound = np.ones(len(rows), bool)
        sound[RowChecks(rank_location(location, rank), reader).unfit(rows)] = False
        if lost_phases:
            sound &= ~np.isin(reader.column("phase"), list(lost_phases))
        examined = cls(reader, sound, np.zeros(len(rows), bool), problems)
        examined._read_values(progress)
        return examined

    @property
    def is_sound(self) -> bool:
        """Whether no row, value or catalogue is damaged, so that the run need not be salvaged.

        True also where zarr.json files or labels (the series, step, pass and call repeated beside
        values) are damaged: these can be made anew from the rows.
        """
        stored = self.reader.kept(np.arange(len(self.sound)))
        return not self.problems and bool(self.sound.all()) and bool((self.kept == stored).all())

    @property
    def lost(self) -> tuple[int, int]:
        """(number of rows that are lost, number of other rows that have lost only their values)."""
        usable = self.usable
        stored = self.reader.kept(np.flatnonzero(usable))
        bare = int((stored & ~self.kept[usable]).sum())
        return int((~usable).sum()), bare

    @property
    def usable(self) -> Array:
        """A mask of the rows that can be salvaged as records, with values or a summary alone."""
        rows = np.arange(len(self.sound))
        without = self.reader.kept(rows) & ~self.kept
        # A row that lost its values and has no stored histogram has no summary either.
        return self.sound & ~(without & (self.reader.column("hist_length") < 0))

    def _read_values(self, progress: Progress) -> None:
        rows = np.flatnonzero(self.sound)
        rows = rows[self.reader.kept(rows)]
        for done, row in enumerate(rows.tolist()):
            if done % _ROWS == 0:
                progress(done, len(rows))
            self.kept[row] = self._fits(row)

    def _fits(self, row: int) -> bool:
        try:
            value = self.reader.unchecked(row)
        except _UNREADABLE:
            return False
        return not self.reader.unfit(np.array([row]), value[None])


def salvage(store: Path, examined: Sequence[Examined], name: str) -> bool:
    """Copy the `usable` rows of the ranks that were examined into a new run of the store.

    name: the name of the new run, which appears only when it is whole. Lost rows and values are
        recorded in it as gaps.

    Return True; False where no rank has a readable attempt left, and then no run is made. Raises
    RunExistsError where another run has the name, InvalidNameError for a forbidden name, StoreError
    where the disk fails.
    """
    check_run_name(name)
    left = [one for one in examined if one.reader.catalogue.attempts]
    if not left:
        return False
    with unmade_store(store) as made:
        for one in left:
            _record(made, one, name)
        place_run(store, run_directory(made, name), name)
    return True


def _opened(run: Location, rank: int) -> tuple[RankReader, Location, list[str], set[int]]:
    """Open a rank that may be damaged.

    Return a reader of what is left of the rank, the location it reads from, the damage found in
    words, and the numbers of phases whose names are lost.
    """
    if _is_fixed(run, rank):
        return RankReader(run, rank), run, [], set()
    remnants = Remnants(run, rank)
    return RankReader(remnants, rank), remnants, remnants.problems, remnants.lost_phases


def _is_fixed(run: Location, rank: int) -> bool:
    """Return whether the rank is sealed (for an archive) or of format 1.

    `Remnants`, which reads around damaged files, does so for neither of these. False also for a
    rank that cannot be opened.
    """
    try:
        reader = RankReader(run, rank)
        return reader.is_sealed or reader.catalogue.version == 1
    except AnchorError:
        return False


def _record(store: Path, one: Examined, name: str) -> None:
    """Write the usable rows of one rank, its gaps, lineage and operations into the run `name`.

    Gaps say what was not recorded, lineage what each value was computed from. store: the directory
    in which the new run is made. Each attempt of the rank becomes an attempt of the new run.
    """
    reader, usable = one.reader, one.usable
    of = reader.column("attempt")
    operations, rest = _operations(one)
    for attempt in reader.catalogue.attempts:
        resume = attempt.number > 0
        header = dict(attempt.header)
        with Writer.open(store, name, reader.rank, resume=resume, header=header) as writer:
            for rows in _batches(reader, np.flatnonzero(usable & (of == attempt.number))):
                writer.write_block(block_of(list(stored_records(reader, rows, one.kept[rows]))))
            stated = [g for key, g in reader.catalogue.gaps.items() if key[0] == attempt.number]
            writer.gap([*stated, *_lost(one, attempt.number)])
            edges = reader.catalogue.edges.values()
            writer.edges([edge for edge in edges if edge.attempt == attempt.number])
            writer.operations([entry for entry in operations if _is_of(entry, attempt.number)])
            if rest and attempt.number == 0:
                writer.gap([rest])


def _is_of(entry: Entry, attempt: int) -> bool:
    return "structure" in entry or entry["attempt"] == attempt


def _operations(one: Examined) -> tuple[list[Entry], Gap | None]:
    """Return (the entries of a rank's log of operations, None), or ([], a Gap).

    The latter where the log is damaged; the Gap says so.
    """
    try:
        return one.reader.operations(), None
    except DamagedError:
        return [], Gap(
            UNKNOWN, "value", "all", "the log of operations was damaged on disk", 1, 0, 0
        )


def _batches(reader: RankReader, rows: Array) -> Iterator[Array]:
    """Split row numbers into batches whose values take about 32 MiB, of at most 1024 rows."""
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        sizes = np.array([reader.stored_bytes(part[at : at + 1]) for at in range(len(part))])
        cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _BATCH_BYTES)) + 1
        yield from (piece for piece in np.split(part, cuts) if len(piece))


def _lost(one: Examined, attempt: int) -> list[Gap]:
    """Return the losses of one attempt as gaps (counts of what is not recorded).

    Lost values have a gap for each series. Lost rows have one gap together, of an unknown tensor: a
    damaged row cannot be trusted to say which series it is of. [] where nothing is lost.
    """
    reader, rows = one.reader, np.arange(len(one.sound))
    own = _clamped(reader.column("attempt"), len(reader.catalogue.attempts)) == attempt
    gaps = []
    if count := int((~one.sound & own).sum()):
        steps = reader.column("step")[one.sound & own]
        span = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
        gaps.append(Gap(UNKNOWN, "value", "all", ROWS_LOST, count, *span))
    bare = rows[one.sound & own & ~one.kept]
    bare = bare[reader.kept(bare)]
    of = reader.column("series")[bare]
    for number in np.unique(of).tolist():
        series = reader.catalogue.series[number]
        steps = reader.column("step")[bare[of == number]]
        span = (int(steps.min()), int(steps.max()))
        named = (series.name, series.kind, series.mode)
        gaps.append(Gap(*named, VALUES_LOST, len(steps), *span))
    return gaps


def _clamped(numbers: Array, count: int) -> Array:
    """Return attempt numbers, with 0 in place of every number that is not below `count`.

    Such a number comes of damage; the loss of its row is then counted for the first attempt.
    """
    return np.where(numbers < count, numbers, 0)
