"""Notes of a store about its runs that are archived: where each one is, and what was confirmed.

    <store>/.anchor/archived/run1.json

A note is written when the archive has been confirmed to hold every rank whole. With it a reader
finds a run whose files were removed here, and whoever removes them knows what may go. It says
nothing secret: credentials come from the environment of whoever reads.
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
from anchorlib.store.disk.tree import sync_directory
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
_RANK: Final = "rank"  # which names of ranks begin with, and notes leave out


@dataclass(frozen=True, slots=True)
class RankNote:
    """One rank, or the part of it that was here, as it was archived.

    uid, records, catalogue: what was sealed: the rank's own, its rows, and bytes of its catalogue.
    objects: a hash of the names, sizes and tags of its objects, as they were when each had been
        compared with what was sealed.
    """

    uid: str
    records: int
    catalogue: int
    objects: str

    @property
    def sealed(self) -> tuple[str, int, int]:
        """What was sealed."""
        return (self.uid, self.records, self.catalogue)


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """An archived run. place: the archive, as a `--store` takes it. parts: what was here."""

    run: str
    place: str
    archived_ns: int
    parts: Mapping[PartKey, RankNote]

    @property
    def ranks(self) -> set[int]:
        """Those of which something was here."""
        return {rank for rank, _ in self.parts}


def write_note(store: Path, note: ArchiveNote) -> None:
    """Puts a note in the place of an earlier one; it survives power loss. Raises OSError."""
    folder = hidden(store) / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {
        rank_name(*key).removeprefix(_RANK): [one.uid, one.records, one.catalogue, one.objects]
        for key, one in note.parts.items()
    }
    told = {"run": note.run, "place": note.place, "archived_ns": note.archived_ns, "ranks": ranks}
    made = folder / f".{note.run}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with made.open("wb") as file:
            file.write(encode(told))
            file.flush()
            os.fsync(file.fileno())
        made.replace(_path(store, note.run))
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_directory(folder)


def note_of(store: Path, run: str) -> ArchiveNote | None:
    """What is noted of a run, None where nothing is. Raises StoreError for a damaged note."""
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
    """The runs of which there are notes, sorted."""
    try:
        names = os.listdir(hidden(store) / _FOLDER)  # noqa: PTH208  # names alone are asked for
    except OSError:
        return []
    runs = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(run for run in runs if _is_name(run))


def forget(store: Path, run: str) -> None:
    """Drops the note of a run that is removed, renamed or recorded anew here."""
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


def _read(told: Mapping[str, Any], run: str) -> ArchiveNote:
    if text(told["run"]) != run:
        raise ValueError("it is of another run")
    parts = {}
    for name, one in mapping(told["ranks"]).items():
        uid, records, catalogue, objects = items(one)
        rank = rank_of(f"{_RANK}{name}")
        if rank is None:
            raise ValueError("it speaks of what is no rank")
        key = (rank, part_of(f"{_RANK}{name}"))
        parts[key] = RankNote(text(uid), whole(records), whole(catalogue), text(objects))
    return ArchiveNote(run, text(told["place"]), whole(told["archived_ns"]), parts)


def _unread(store: Path, run: str, why: str) -> StoreError:
    return StoreError(
        f"the note of where {run} is archived is damaged ({escape(why)}): remove "
        f"{escape(str(_path(store, run)))}; the archive itself can be given as --store"
    )
