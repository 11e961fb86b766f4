"""A store's notes about its archived runs: where each archive is, and what it was found to hold.

    <store>/.anchor/archived/run1.json

A note is written when the archive has been confirmed to hold every rank completely. With the note a
reader finds a run whose files were removed here, and whoever removes archived runs knows which
files may go. A note holds no secret: credentials come from the environment of the reader. A rank is
sealed when it is made into the archive's objects.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from anchorlib.errors import AnchorError, StoreError
from anchorlib.names import check_stored_run_name, escape
from anchorlib.store.disk.node_writer import sync_directory
from anchorlib.store.format import (
    encode,
    hidden,
    is_sound,
    items,
    mapping,
    part_of,
    rank_name,
    rank_of,
    text,
    whole,
)
from anchorlib.store.locations import PartKey

__all__ = ["ArchiveNote", "RankNote", "forget", "note_of", "noted_runs", "write_note"]

_FOLDER: Final = "archived"
_SUFFIX: Final = ".json"
_RANK: Final = "rank"  # rank names begin with it; notes leave it out


@dataclass(frozen=True, slots=True)
class RankNote:
    """One rank, or the part of it that this store held, as it was archived.

    uid: the id of the rank. records: how many rows it has. catalogue: how many bytes its catalogue
        has. The three say which state of the rank was sealed.
    objects: a hash of the names, sizes and tags of the rank's objects in the archive, taken after
        each object was found to be what was sealed.
    """

    uid: str
    records: int
    catalogue: int
    objects: str

    @property
    def sealed(self) -> tuple[str, int, int]:
        """The state of the rank that was sealed, as (uid, records, bytes of the catalogue)."""
        return (self.uid, self.records, self.catalogue)


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """A store's note of an archived run: the file that says where the run's archive is.

    place: the archive's address, as `--store` takes it. archived_ns: when the run was archived, in
        nanoseconds since the epoch. parts: {(rank, part): the RankNote} for each rank, or part of a
        rank, that this store held.
    """

    run: str
    place: str
    archived_ns: int
    parts: Mapping[PartKey, RankNote]

    @property
    def ranks(self) -> set[int]:
        """The ranks that this store held, wholly or in part."""
        return {rank for rank, _ in self.parts}


def write_note(store: Path, note: ArchiveNote) -> None:
    """Write the note that says where a run is archived, replacing an earlier note.

    When this returns, the note survives power loss. Raises OSError if it cannot be written.
    """
    folder = hidden(store) / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {
        rank_name(*key).removeprefix(_RANK): [one.uid, one.records, one.catalogue, one.objects]
        for key, one in note.parts.items()
    }
    fields = {"run": note.run, "place": note.place, "archived_ns": note.archived_ns, "ranks": ranks}
    made = folder / f".{note.run}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with made.open("wb") as file:
            file.write(encode(fields))
            file.flush()
            os.fsync(file.fileno())
        made.replace(_path(store, note.run))
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_directory(folder)


def note_of(store: Path, run: str) -> ArchiveNote | None:
    """Return the note that says where a run is archived; None where the run has no note.

    Raises StoreError for a note that is damaged or cannot be read.
    """
    try:
        data = _path(store, run).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unread(store, run, error.strerror or "it cannot be read") from error
    try:
        if not data.endswith(b"\n") or not is_sound(data[:-1]):
            raise ValueError("it does not fit its checksum")
        return _read(mapping(json.loads(data)), run)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unread(store, run, str(error)) from error


def noted_runs(store: Path) -> list[str]:
    """Return the names of the runs of which this store has a note, sorted.

    A note is the file that says where a run was archived. [] where there are no notes, or they
    cannot be listed.
    """
    try:
        names = os.listdir(hidden(store) / _FOLDER)  # noqa: PTH208  # only names are needed
    except OSError:
        return []
    runs = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(run for run in runs if _is_name(run))


def forget(store: Path, run: str) -> None:
    """Delete a run's note, the file that says where the run was archived; ignore a missing file.

    To be called when the run is removed, renamed or changed, so that the archive does not stand for
    the run any more. A note that cannot be deleted is no error.
    """
    with contextlib.suppress(OSError):
        _path(store, run).unlink()


def _path(store: Path, run: str) -> Path:
    return hidden(store) / _FOLDER / f"{check_stored_run_name(run)}{_SUFFIX}"


def _is_name(run: str) -> bool:
    try:
        check_stored_run_name(run)
    except AnchorError:
        return False
    return True


def _read(fields: Mapping[str, Any], run: str) -> ArchiveNote:
    if text(fields["run"]) != run:
        raise ValueError("it is of another run")
    parts = {}
    for name, one in mapping(fields["ranks"]).items():
        uid, records, catalogue, objects = items(one)
        rank = rank_of(f"{_RANK}{name}")
        if rank is None:
            raise ValueError("it speaks of what is no rank")
        key = (rank, part_of(f"{_RANK}{name}"))
        parts[key] = RankNote(text(uid), whole(records), whole(catalogue), text(objects))
    return ArchiveNote(run, text(fields["place"]), whole(fields["archived_ns"]), parts)


def _unread(store: Path, run: str, why: str) -> StoreError:
    return StoreError(
        f"the note of where {run} is archived is damaged ({escape(why)}): remove "
        f"{escape(str(_path(store, run)))}; the archive itself can be given as --store"
    )
