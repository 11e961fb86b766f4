"""The spools of this machine for `anchor status`: how much waits in each, and who owns it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anchorlib.spool.limit import limit_of
from anchorlib.spool.spool_folder import LOCK, SpoolLabel, is_spool, spool_place
from anchorlib.store import is_locked

__all__ = ["LeftSpool", "SpoolRoom", "spool_room", "spools_here"]


@dataclass(frozen=True, slots=True)
class LeftSpool:
    """One spool of this machine, as `anchor status` lists it.

    path: the spool's folder.

    run, rank, to: the run, the rank and the collector's address, from the spool's file spool.json;
        None if the file is lost or unreadable.

    nbytes: bytes of the spool's segments, the files with records.
    live: whether a live process owns the spool, and therefore delivers it.
    """

    path: Path
    run: str | None
    rank: int | None
    to: str | None
    nbytes: int
    live: bool


@dataclass(frozen=True, slots=True)
class SpoolRoom:
    """The directory in which a session would make its spool, and the spool's most bytes."""

    path: Path
    limit: int


def spool_room() -> SpoolRoom:
    """Return where a session in this process's environment would make its spool, and how large.

    No directory is made. Raises OptionError if ANCHOR_SPOOL_LIMIT holds no size.
    """
    path = spool_place()
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    system = os.statvfs(there)
    return SpoolRoom(path, limit_of(system.f_bavail * system.f_frsize))


def spools_here(place: Path | None = None) -> Iterator[LeftSpool]:
    """Yield the spools in the directory `place`, sorted by name; nothing if it cannot be read.

    place: None for the directory in which sessions make their spools.
    """
    folder = spool_place() if place is None else place
    try:
        spools = sorted(path for path in folder.iterdir() if is_spool(path))
    except OSError:
        return
    for path in spools:
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
