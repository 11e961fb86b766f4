"""Archives a run: its ranks and parts, its index, and a note in the store that it is archived.

A rank that several collectors recorded is archived part by part, from whichever store holds them:
readers join the parts in an archive as they join those of collectors.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from anchorlib.archive.apart import check_apart
from anchorlib.archive.endings import check_ended, check_recording, is_spread, open_ranks
from anchorlib.archive.index import put_index
from anchorlib.archive.rank import SentRank, archive_rank, is_archived
from anchorlib.errors import RunBusyError, RunNotFoundError, StoreError
from anchorlib.names import escape
from anchorlib.progress import Progress
from anchorlib.store import (
    LocalLocation,
    Location,
    RankReader,
    end_copy,
    is_written,
    note_archived,
    open_parts,
    run_directory,
)
from anchorlib.store.disk import ArchiveNote, note_of
from anchorlib.store.format import hidden
from anchorlib.store.objects import Shelf, ShelfWithin
from anchorlib.store.seal import read_sealed
from anchorlib.store.write import store_errors

__all__ = [
    "ArchivePlan",
    "ArchiveResult",
    "archive_run",
    "archive_served",
    "plan_archive",
    "plan_served",
]

Scratch = Callable[[], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The result of archiving a run, whose ranks are now complete in the archive.

    run: the run's name. place: the archive as text. ranks: the ranks, or ranks with parts, that
        were archived. objects, bytes: how many objects these have in the archive, and how many
        bytes. sent: how many objects were sent by this call.
    """

    run: str
    place: str
    ranks: tuple[int, ...]
    objects: int
    bytes: int
    sent: int


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What archiving a run would do.

    run: the run's name. ranks: all ranks of the run. there: those of them that the archive has
        already. bytes: the size of the stored values of all ranks, archived or not.
    """

    run: str
    ranks: tuple[int, ...]
    there: tuple[int, ...]
    bytes: int


def archive_run(
    store: Path, run: str, shelf: Shelf, progress: Progress | None = None
) -> ArchiveResult:
    """Archive the ranks and parts of a run in a directory; the run's files there stay as they are.

    A call that was killed is continued by the next call; two calls at once have the same result.

    store: the directory. run: the run's name. shelf: the archive, as `checked_shelf` returns it.
        progress: called before each part with the number of parts done and of all parts.

    Raises RunBusyError for a run that a living process writes, or wrote while it was archived, or
    for a rank of which another archiver sends other bytes; RunExistsError where the archive has
    another recording under this name; OptionError where the archive is the store itself;
    StoreError for a run that was not closed, or is damaged or cannot be read; RunNotFoundError
    where the store has no such run; CollectorError where the archive does not answer.
    """
    check_apart(store, run, shelf)
    parts = _parts_in(store, run)
    location = LocalLocation(run_directory(store, run))
    sent = _sent(location, run, parts, shelf, lambda: _scratch(store, run), progress)
    notes = {one.key: one.note for one in sent}
    note_archived(store, ArchiveNote(run, shelf.place, time.time_ns(), notes))
    return _summary(run, shelf, sent)


def archive_served(
    location: Location, run: str, shelf: Shelf, progress: Progress | None = None
) -> ArchiveResult:
    """Archive a run that collectors serve, or that is in another archive; no note is written.

    location: where the run is. run: the run's name. shelf, progress: as for `archive_run`.
    Raises what `archive_run` raises. But a run that is being written raises no RunBusyError, since
    only its collectors know that.
    """
    parts = _parts_at(location, run)
    scratch = tempfile.TemporaryDirectory
    return _summary(run, shelf, _sent(location, run, parts, shelf, scratch, progress))


def plan_archive(store: Path, run: str, shelf: Shelf) -> ArchivePlan:
    """Return what `archive_run`, given these arguments, would do; nothing is written.

    Raises the errors of `archive_run`, except those that only archiving can find: damaged rows and
    values, another archiver at work, and another recording in the archive. (The last is found here
    too if several collectors recorded the run.)
    """
    check_apart(store, run, shelf)
    folder = ShelfWithin(shelf, f"{run}.zarr")
    parts = _parts_in(store, run)
    check_ended(run, parts, shelf)
    note = note_of(store, run)
    noted = {} if note is None or note.place != shelf.place else note.parts
    away = {
        one.rank
        for one in parts
        if (rank_note := noted.get((one.rank, one.part))) is None
        or not is_archived(one, rank_note, folder)
    }
    return _planned(run, parts, away)


def plan_served(location: Location, run: str, shelf: Shelf) -> ArchivePlan:
    """Return what `archive_served`, given these arguments, would do; nothing is written.

    Raises the errors of `archive_served`, except for those that `plan_archive` does not raise.
    """
    there = ShelfWithin(shelf, f"{run}.zarr").location
    parts = _parts_at(location, run)
    check_ended(run, parts, shelf)
    away = {one.rank for one in parts if read_sealed(there, one.rank, one.part) is None}
    return _planned(run, parts, away)


def _planned(run: str, parts: Sequence[RankReader], away: set[int]) -> ArchivePlan:
    ranks = _ranks(parts)
    there = tuple(rank for rank in ranks if rank not in away)
    return ArchivePlan(run, ranks, there, sum(map(_stored, parts)))


def _stored(reader: RankReader) -> int:
    import numpy as np

    return reader.stored_bytes(np.arange(reader.committed))


def _sent(  # each argument has a meaning of its own
    location: Location,
    run: str,
    parts: Sequence[RankReader],
    shelf: Shelf,
    scratch: Scratch,
    progress: Progress | None,
) -> list[SentRank]:
    """Send all parts into the archive, then the run's zarr.json and index; return the parts sent.

    Of a run that several collectors recorded, ranks that have ended are sent even if other ranks
    have not: else two collectors could each wait for a part that the other one holds.

    location: where the run is. parts: readers of what is there of each rank. scratch: makes a
        temporary folder, in which one part is sealed (compressed). progress: called before each
        part with the number of parts done and of all parts.

    Raises NotEndedError where a rank has not ended: for a run of several collectors after the other
    ranks were sent, else before anything is sent. Also raises what `archive_run` raises.
    """
    folder = ShelfWithin(shelf, f"{run}.zarr")
    check_recording(run, parts, shelf)
    waiting = set(open_ranks(run, parts, shelf))
    ended = [one for one in parts if one.rank not in waiting]
    if not ended or (waiting and not is_spread(parts)):
        check_ended(run, parts, shelf)
    sent: list[SentRank] = []
    for number, part in enumerate(ended):
        if progress is not None:
            progress(number, len(ended))
        with scratch() as place:
            sent.append(archive_rank(location, part, folder, Path(place)))
    document = location.get("zarr.json")
    if document is not None:
        folder.create("zarr.json", document)
    put_index(folder, _ranks(ended), anew=[one.key[0] for one in sent if one.marked])
    if waiting:
        check_ended(run, parts, shelf)
    return sent


def _summary(run: str, shelf: Shelf, sent: Sequence[SentRank]) -> ArchiveResult:
    return ArchiveResult(
        run,
        shelf.place,
        tuple(sorted({rank for rank, _ in (one.key for one in sent)})),
        sum(one.objects for one in sent),
        sum(one.bytes for one in sent),
        sum(one.sent for one in sent),
    )


def _ranks(parts: Sequence[RankReader]) -> tuple[int, ...]:
    return tuple(sorted({one.rank for one in parts}))


def _parts_in(store: Path, run: str) -> list[RankReader]:
    """Return readers of the parts of a run in the directory `store`.

    Raises RunBusyError for a run that a living process writes, StoreError for a rank that was
    copied while it was written and lacks its end, RunNotFoundError where the store lacks the run.
    """
    if is_written(store, run):
        raise RunBusyError(
            f"run {run!r} is being written by a living process: archive it when that has ended"
        )
    location = LocalLocation(run_directory(store, run))
    parts = _parts_at(location, run, str(store))
    for part in parts:
        end_copy(location, run, part)
        if part.left_out:
            raise StoreError(
                f"rank {part.rank} of {run!r} was copied while it was written, and its end is not "
                "here: copy it again, or archive it where it was recorded"
            )
    return parts


def _parts_at(location: Location, run: str, where: str = "") -> list[RankReader]:
    parts = open_parts(location, run)
    if not parts:
        raise RunNotFoundError(f"no run {run!r} in {escape(where or str(location))}")
    return parts


def _scratch(store: Path, run: str) -> tempfile.TemporaryDirectory[str]:
    """Return a context manager that gives a temporary folder on the store's disk.

    A rank is sealed (compressed) in the folder. The folder is deleted when the context ends, or,
    where the archiver was killed, after a day.
    Raises StoreError where the folder cannot be made.
    """
    with store_errors(f"cannot seal {run!r} in {escape(str(store))}"):
        (folder := hidden(store) / "tmp").mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory("", f"seal-{run}-", folder, ignore_cleanup_errors=True)
