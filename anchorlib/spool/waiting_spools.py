"""The spools of this machine, seen from outside: how much waits in each, and who owns it."""

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
    """One spool.

    run, rank, to: of its label; None where the label was lost.
    nbytes: bytes of its segments.
    live: whether a live process owns the spool, and so delivers it.
    """

    path: Path
    run: str | None
    rank: int | None
    to: str | None
    nbytes: int
    live: bool


@dataclass(frozen=True, slots=True)
class SpoolRoom:
    """The directory in which a session of this environment would spool, and its limit in bytes."""

    path: Path
    limit: int


def spool_room() -> SpoolRoom:
    """Where a session of this environment would spool; makes no directory.

    Raises OptionError where ANCHOR_SPOOL_LIMIT holds no size.
    """
    path = spool_place()
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    system = os.statvfs(there)
    return SpoolRoom(path, limit_of(system.f_bavail * system.f_frsize))


def spools_here(place: Path | None = None) -> Iterator[LeftSpool]:
    """The spools in a directory (None: where sessions of this environment spool), by name."""
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
