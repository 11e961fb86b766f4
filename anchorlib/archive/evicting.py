"""Decides which archived runs keep their files on this machine, and removes the files of others."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from anchorlib.archive.apart import check_apart
from anchorlib.archive.rank import is_archived
from anchorlib.errors import AnchorError, CollectorError
from anchorlib.store import (
    LocalLocation,
    disk_bytes,
    evict_run,
    listed_parts,
    open_parts,
    run_directory,
)
from anchorlib.store.disk import ArchiveNote, note_of, noted_runs
from anchorlib.store.objects import Shelf, ShelfWithin

__all__ = ["Keep", "leaving", "make_room"]

_log = logging.getLogger("anchorlib")


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the archived runs stays on this machine; runs that are not archived always stay.

    most: the bytes of disk that archived runs may take together; if they take more, the runs that
        were archived first are removed. None sets no limit; 0 keeps no archived run.
    seconds: how long a run stays after it was archived. None sets no limit.
    """

    most: int | None = None
    seconds: float | None = None

    @property
    def is_all(self) -> bool:
        """Whether all runs stay, that is, no limit is set."""
        return self.most is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class _KeptRun:
    note: ArchiveNote
    bytes: int


def leaving(store: Path, place: str, keep: Keep, also: Iterable[str] = ()) -> list[str]:
    """Return the names of the runs that `make_room` would remove here, first archived first.

    The archive is not asked, so `make_room` may find a reason to keep some of these runs.

    place: the archive as text; only runs that the store notes as archived there are counted. also:
        names of further runs that are not archived yet. They are counted as if they had just been
        archived, and may be in the result.
    """
    if keep.is_all:
        return []
    here = [*_here(store, place)]
    known = {one.note.run for one in here}
    fresh = [
        _KeptRun(ArchiveNote(run, place, time.time_ns(), {}), disk_bytes(run_directory(store, run)))
        for run in also
        if run not in known
    ]
    here = sorted([*here, *fresh], key=lambda one: one.note.archived_ns)
    left, going = sum(one.bytes for one in here), []
    for one in here:
        aged = keep.seconds is not None and _age(one.note) > keep.seconds
        if aged or (keep.most is not None and left > keep.most):
            going.append(one.note.run)
            left -= one.bytes
    return going


def make_room(store: Path, shelf: Shelf, keep: Keep) -> dict[str, int]:
    """Remove archived runs from this machine until `keep` is met; return freed bytes by run name.

    Each run is looked up in the archive before it is removed here. A run stays if the archive no
    longer has its objects as they were when it was archived, if its files here have changed since
    then, or if a living process writes it; the reason is logged.

    Raises CollectorError where the archive cannot be asked; then no further run is removed.
    """
    freed: dict[str, int] = {}
    for run in leaving(store, shelf.place, keep):
        try:
            note = note_of(store, run)
            if note is None or not _is_confirmed(store, note, shelf):
                _log.warning(
                    "%s stays here: the archive does not hold it as it was sent; archive it again",
                    run,
                )
                continue
            freed[run] = evict_run(store, note)
        except CollectorError:
            raise
        except AnchorError as error:
            _log.warning("%s stays here: %s", run, error)
    return freed


def _is_confirmed(store: Path, note: ArchiveNote, shelf: Shelf) -> bool:
    check_apart(store, note.run, shelf)
    location = LocalLocation(run_directory(store, note.run))
    if listed_parts(location) != sorted(note.parts):
        return False
    folder = ShelfWithin(shelf, f"{note.run}.zarr")
    readers = open_parts(location, note.run)
    return all(is_archived(one, note.parts[one.rank, one.part], folder) for one in readers)


def _here(store: Path, place: str) -> Iterable[_KeptRun]:
    """Yield the runs that are archived at `place` and whose files are still in this store.

    Runs whose note of their archive is damaged are left out, and logged.
    """
    for run in noted_runs(store):
        try:
            note = note_of(store, run)
        except AnchorError as error:
            _log.warning("%s", error)
            continue
        folder = run_directory(store, run)
        if note is not None and note.place == place and folder.is_dir() and not folder.is_symlink():
            yield _KeptRun(note, disk_bytes(folder))


def _age(note: ArchiveNote) -> float:
    return (time.time_ns() - note.archived_ns) / 1e9
