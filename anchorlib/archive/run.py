"""A run into an archive: all of its ranks, its index, and a note here that it is archived."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anchorlib.archive.apart import check_apart
from anchorlib.archive.index import put_index
from anchorlib.archive.rank import SentRank, archive_rank, is_archived
from anchorlib.errors import OptionError, RunBusyError, RunNotFoundError
from anchorlib.names import escape
from anchorlib.store import (
    LocalLocation,
    RankReader,
    RunReader,
    is_written,
    listed_parts,
    run_directory,
)
from anchorlib.store.disk import ArchiveNote, note_of, write_note
from anchorlib.store.format import hidden
from anchorlib.store.objects import Shelf, ShelfWithin
from anchorlib.store.write import store_errors

__all__ = ["Archived", "Planned", "archive_run", "plan_archive"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Archived:
    """A run that is in the archive, whole.

    objects, bytes: of which it is made there. sent: how many of them had to be sent now.
    """

    run: str
    place: str
    ranks: tuple[int, ...]
    objects: int
    bytes: int
    sent: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What archiving a run would do. there: the ranks that the archive has already."""

    run: str
    ranks: tuple[int, ...]
    there: tuple[int, ...]
    bytes: int


def archive_run(store: Path, run: str, shelf: Shelf, progress: Progress | None = None) -> Archived:
    """Archives a run of a directory; it stays there as it is.

    shelf: the archive, as `checked_shelf` gives it. progress: is told ranks done, and of how many.

    Killed at any moment and called again, it goes on; two at once come to the same. Raises
    RunBusyError for a run that a living process writes, RunExistsError where the archive has
    another recording under this name, OptionError where the archive is the store itself,
    StoreError, CollectorError.
    """
    check_apart(store, run, shelf)
    folder = ShelfWithin(shelf, f"{run}.zarr")
    reader = _reader(store, run)
    sent: list[SentRank] = []
    for number, rank in enumerate(reader.ranks):
        if progress is not None:
            progress(number, len(reader.ranks))
        with _scratch(store, run) as scratch:
            sent.append(archive_rank(reader.location, reader.rank(rank), folder, Path(scratch)))
    document = reader.location.get("zarr.json")
    if document is not None:
        folder.create("zarr.json", document)
    put_index(folder, reader.ranks, anew=[one.rank for one in sent if one.marked])
    ranks = {one.rank: one.note for one in sent}
    with store_errors(f"cannot note that {run!r} is archived in {escape(str(store))}"):
        write_note(store, ArchiveNote(run, shelf.place, time.time_ns(), ranks))
    return Archived(
        run,
        shelf.place,
        tuple(reader.ranks),
        sum(one.objects for one in sent),
        sum(one.bytes for one in sent),
        sum(one.sent for one in sent),
    )


def plan_archive(store: Path, run: str, shelf: Shelf) -> Planned:
    """What `archive_run` would do; nothing is written. Raises as it does."""
    check_apart(store, run, shelf)
    folder = ShelfWithin(shelf, f"{run}.zarr")
    reader = _reader(store, run)
    note = note_of(store, run)
    noted = {} if note is None or note.place != shelf.place else note.ranks
    readers = [reader.rank(rank) for rank in reader.ranks]
    known = [one for one in readers if one.rank in noted]
    there = tuple(one.rank for one in known if is_archived(one, noted[one.rank], folder))
    return Planned(run, tuple(reader.ranks), there, sum(map(_stored, readers)))


def _stored(reader: RankReader) -> int:
    import numpy as np

    return reader.stored_bytes(np.arange(reader.committed))


def _reader(store: Path, run: str) -> RunReader:
    """The run's reader, of a run that nobody writes."""
    if is_written(store, run):
        raise RunBusyError(
            f"run {run!r} is being written by a living process: archive it when that has ended"
        )
    location = LocalLocation(run_directory(store, run))
    if any(part for _, part in listed_parts(location)):
        raise OptionError(
            f"run {run!r} has ranks in parts, of several collectors, and whole ranks are archived: "
            "it stays where it is"
        )
    reader = RunReader(location, run)
    reader.refresh()
    if not reader.ranks:
        raise RunNotFoundError(f"no run {run!r} in {escape(str(store))}")
    return reader


def _scratch(store: Path, run: str) -> tempfile.TemporaryDirectory[str]:
    """A folder on the store's own disk; what a killed archiver leaves is swept after a day."""
    with store_errors(f"cannot seal {run!r} in {escape(str(store))}"):
        (folder := hidden(store) / "tmp").mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory("", f"seal-{run}-", folder, ignore_cleanup_errors=True)
