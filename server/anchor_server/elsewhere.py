"""Runs whose files are in their archive alone, given out as if they were here."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from anchorlib.store import Location, archived_location, noted_runs

__all__ = ["Elsewhere"]

_SUFFIX: Final = ".zarr"
_MOST: Final = 64  # connections that are kept


class Elsewhere:
    """The archives that the notes of a store lead to, by keys of the store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, Location] = {}
        self._lock = Lock()

    def get(self, key: str, start: int, length: int) -> bytes | None:
        """See `Location.get`; raises CollectorError where the archive cannot be reached."""
        run, _, inside = key.partition("/")
        location = self._location(run) if inside else None
        return None if location is None else location.get(inside, start, length)

    def folders(self) -> list[str]:
        """The folders of all runs that are archived, as a listing of the store has them."""
        return [f"{run}{_SUFFIX}/" for run in noted_runs(self._root)]

    def list(self, key: str) -> list[str]:
        """See `Location.list`."""
        run, _, inside = key.partition("/")
        location = self._location(run)
        return [] if location is None else location.list(inside)

    def _location(self, folder: str) -> Location | None:
        run = folder.removesuffix(_SUFFIX)
        if not run or run == folder or (self._root / folder).is_dir():
            return None
        with self._lock:
            known = self._known.get(run)
        if known is None:
            known = archived_location(self._root, run)
            with self._lock:
                if known is not None:
                    while len(self._known) >= _MOST:
                        del self._known[next(iter(self._known))]
                    self._known[run] = known
        return known
