"""Changes the file in a store that says where a run's archive is, after the archive has moved."""

from __future__ import annotations

import time
from pathlib import Path

from anchorlib.archive.rank import listing_hash
from anchorlib.errors import DamagedError, RunExistsError, RunNotFoundError
from anchorlib.names import escape
from anchorlib.store import Location, PartKey, RankReader, Within, note_moved, read_sealed
from anchorlib.store.disk import ArchiveNote, RankNote
from anchorlib.store.objects import Shelf
from anchorlib.store.seal import sealed_faults

__all__ = ["update_archive_place"]


def update_archive_place(store: Path, note: ArchiveNote, shelf: Shelf) -> ArchiveNote:
    """Write and return a new note of an archived run, after checking the archive's new place.

    A note is the file in a store that says where the archive of a run is. Before it is written,
    all objects of the run at the new place are read and compared with their hashes.

    note: the present note of a run whose files are in its archive alone; the place that the note
        names is not read. shelf: the new place.

    Raises RunNotFoundError where the run is not complete at the new place, RunExistsError where
    another recording is there, DamagedError where an object does not fit its SHA-256, RunBusyError
    where the run was recorded anew, or its note is no longer `note`; StoreError or CollectorError
    where the store or the new place cannot be read or written.
    """
    folder = Within(shelf.location, f"{note.run}.zarr")
    parts = {key: _noted(folder, key, old, note.run, shelf) for key, old in note.parts.items()}
    moved = ArchiveNote(note.run, shelf.place, time.time_ns(), parts)
    note_moved(store, note, moved)
    return moved


def _noted(run: Location, key: PartKey, note: RankNote, name: str, shelf: Shelf) -> RankNote:
    """Check that a rank at its new place is whole, and the rank of `note`; return a new RankNote.

    A RankNote says which state of a rank an archive has. The recording's identity is compared with
    `note`, and each object with its SHA-256 in the new place's `sealed.json`.

    run: the run's folder at the new place. key: the rank's number, and the number of the part of
        the rank (what one collector holds of it). name: the run's name. shelf: the new place.

    Raises what `update_archive_place` raises.
    """
    sealed = read_sealed(run, *key)
    if sealed is None:
        raise RunNotFoundError(
            f"{escape(shelf.place)} has no rank {key[0]} of run {name!r} that is whole: copy the "
            "archive there first, all of its objects under the same names"
        )
    reader = RankReader(run, key[0], name, key[1])
    if (sealed.uid, *reader.version) != note.sealed:
        raise RunExistsError(
            f"{escape(shelf.place)} has another recording of rank {key[0]} of run {name!r}, and "
            "not the one that was archived from here"
        )
    for fault in sealed_faults(run, sealed):
        raise DamagedError(f"in {escape(shelf.place)}, {fault}: copy it there once more")
    held = shelf.held(f"{name}.zarr/{sealed.folder}")
    own = {one.key: held[f"{name}.zarr/{one.key}"] for one in sealed.objects}
    return RankNote(note.uid, note.records, note.catalogue, listing_hash(own))
