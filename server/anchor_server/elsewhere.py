"""Runs whose files are in their archive alone, given out as if they were here."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from anchorlib.store import (
    RUN_INDEX,
    ArchiveNote,
    Location,
    archived_location,
    listed_parts,
    note_of,
    noted_runs,
    part_of,
    rank_location,
    rank_of,
)

__all__ = ["Elsewhere"]

_SUFFIX: Final = ".zarr"
_MOST: Final = 64  # connections that are kept
_MOST_RANKS: Final = 2  # of which what was read last is kept: up to 96 MiB each
_OF_THE_RUN: Final = ("zarr.json", RUN_INDEX)
_CHUNK: Final = "c."  # the names of files of a live rank; those of a sealed one are c/0


class Elsewhere:
    """The archives that the notes of a store lead to, by keys of the store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[tuple[str, str, int], Location] = {}
        self._lock = Lock()
        self._ranks: dict[tuple[str, str, int, str], Location] = {}
        self._reading = Lock()

    def get(self, key: str, start: int, length: int) -> bytes | None:
        """See `Location.get`; raises CollectorError where the archive cannot be reached."""
        folder, _, inside = key.partition("/")
        found = self._found(folder) if inside else None
        if found is None:
            return None
        location, note = found
        if not _is_ours(inside.partition("/")[0], note):
            return None
        # Other collectors archive their ranks of a run there too: those are not ours to give out.
        if inside == RUN_INDEX and {*listed_parts(location)} != {*note.parts}:
            return None
        data = location.get(inside, start, length)
        return self._as_it_was(found, inside, start, length) if data is None else data

    def folders(self) -> list[str]:
        """The folders of all runs that are archived, as a listing of the store has them."""
        return [f"{run}{_SUFFIX}/" for run in noted_runs(self._root)]

    def list(self, key: str) -> list[str]:
        """See `Location.list`."""
        folder, _, inside = key.partition("/")
        found = self._found(folder)
        if found is None:
            return []
        location, note = found
        names = location.list(inside)
        return names if inside else [one for one in names if _is_ours(one.rstrip("/"), note)]

    def _as_it_was(
        self, found: tuple[Location, ArchiveNote], inside: str, start: int, length: int
    ) -> bytes | None:
        """A file of the rank that was here, made of its archived rows.

        Whoever opened the run before it went asks for such files until he looks for new ones.
        """
        folder, _, key = inside.partition("/")
        rank = rank_of(folder)
        if rank is None or not key.rpartition("/")[2].startswith(_CHUNK):
            return None
        location, note = found
        name = (note.run, note.place, note.archived_ns, folder)
        with self._reading:
            known = self._ranks.pop(name, None) or rank_location(location, rank, part_of(folder))
            self._ranks[name] = known
            while len(self._ranks) > _MOST_RANKS:
                del self._ranks[next(iter(self._ranks))]
            return known.get(key, start, length)

    def _found(self, folder: str) -> tuple[Location, ArchiveNote] | None:
        """Where a run is read that is in its archive alone, and what is noted of it now."""
        run = folder.removesuffix(_SUFFIX)
        if not run or run == folder or (self._root / folder).is_dir():
            return None
        note = note_of(self._root, run)
        if note is None:
            return None
        key = (run, note.place, note.archived_ns)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = archived_location(self._root, run)
            if known is None:
                return None
            with self._lock:
                while len(self._known) >= _MOST:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        return known, note


def _is_ours(name: str, note: ArchiveNote) -> bool:
    """Whether what bears this name is the run's own, or a part of a rank that was here.

    The archive may hold anything, and its folder of the run may lead anywhere.
    """
    rank = rank_of(name)
    return name in _OF_THE_RUN if rank is None else (rank, part_of(name)) in note.parts
