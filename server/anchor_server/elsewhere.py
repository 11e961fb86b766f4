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
    rank_of,
)

__all__ = ["Elsewhere"]

_SUFFIX: Final = ".zarr"
_MOST: Final = 64  # connections that are kept


class Elsewhere:
    """The archives that the notes of a store lead to, by keys of the store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[tuple[str, str, int], Location] = {}
        self._lock = Lock()

    def get(self, key: str, start: int, length: int) -> bytes | None:
        """See `Location.get`; raises CollectorError where the archive cannot be reached."""
        folder, _, inside = key.partition("/")
        found = self._found(folder) if inside else None
        if found is None:
            return None
        location, note = found
        # Other collectors archive their ranks of a run there too: those are not ours to give out.
        if inside == RUN_INDEX and {*listed_parts(location)} != {*note.parts}:
            return None
        return location.get(inside, start, length)

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
    """Whether what bears this name is the run's own, or a part of a rank that was here."""
    rank = rank_of(name)
    return rank is None or (rank, part_of(name)) in note.parts
