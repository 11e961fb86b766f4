"""The spools of this machine, looked at from outside: what waits in them, and whether it moves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anchorlib.spool.limit import limit_of
from anchorlib.spool.place import LOCK, SpoolLabel, is_spool, spool_place
from anchorlib.store import is_locked

__all__ = ["LeftSpool", "SpoolRoom", "spool_room", "spools_here"]


@dataclass(frozen=True, slots=True)
class LeftSpool:
    """One spool.

    run, rank, to: what it is of and where it goes; None where its label was lost.
    nbytes: of its segments.
    live: whether a process owns it, and delivers it.
    """

    path: Path
    run: str | None
    rank: int | None
    to: str | None
    nbytes: int
    live: bool


@dataclass(frozen=True, slots=True)
class SpoolRoom:
    """Where a session of this environment would spool, and how many bytes at most."""

    path: Path
    limit: int


def spool_room() -> SpoolRoom:
    """The place and its limit; neither is made. Raises OptionError for a limit that is none."""
    path = spool_place()
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    system = os.statvfs(there)
    return SpoolRoom(path, limit_of(system.f_bavail * system.f_frsize))


def spools_here(place: Path | None = None) -> Iterator[LeftSpool]:
    """The spools in a directory (None: where sessions of this environment spool), by name."""
    folder = spool_place() if place is None else place
    try:
        found = sorted(path for path in folder.iterdir() if is_spool(path))
    except OSError:
        return
    for path in found:
        label = SpoolLabel.read(path)
        run, rank, to = (None, None, None) if label is None else (label.run, label.rank, label.to)
        yield LeftSpool(path, run, rank, to, _bytes(path), live=is_locked(path / LOCK))


def _bytes(path: Path) -> int:
    total = 0
    for file in path.glob("*.seg"):
        try:
            total += file.stat().st_size
        except OSError:  # delivered in the meantime
            continue
    return total
