"""How much a run may still write when the disk gets full, and which values are then left out.

A rank may take `max_bytes`, or without this option all of the file system but a twentieth of its
bytes and of its inodes, since a file system without free inodes is full as well. A collector may
also limit all ranks of a run together (`RunQuota`).
The writer of a rank asks before it writes values (`write.writer`), and leaves them out where there
is no room. In a collector it waits for room instead where the disk is full: the write raises, and
is tried again later.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["NO_ROOM", "REASONS", "RankQuota", "RunFilesError", "RunQuota", "SizeLimits"]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The errno values for a full file system, and for a user who has used up a quota."""

REASONS = ("max_bytes", "max_run_size", "disk")
"""Why values are left out: the limit of the rank, the limit of the run, or a nearly full disk."""

Array = np.ndarray[Any, Any]

RECHECK_BYTES = 64 << 20
RECHECK_SECONDS = 1.0
RECHECK_FILES = 256
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever blocks the file system has
FILE_BYTES = 4096  # the least that a file takes on disk


class RunFilesError(OSError):
    """Raised where a run has as many files as its limit allows."""


class RunQuota:
    """Counts the bytes and files of all ranks of a run together, and keeps them within limits.

    There are no limits before `bound` sets them. Any thread may call the methods.
    run: the run's directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._most_bytes: int | None = None
        self._most_files: int | None = None
        self._used = 0
        self._files = 0
        self._measured = -math.inf
        self._lock = threading.Lock()

    def bound(self, nbytes: int | None, files: int | None) -> None:
        """Set how many bytes, and how many files and folders, the run may have; None: no limit."""
        self._most_bytes, self._most_files = nbytes, files

    def measure(self) -> None:
        """Count the run's files and bytes on disk again, in place of the counts so far.

        Holes of sparse files take no bytes.
        """
        blocks = [_blocks(file) for file in self._run.rglob("*")]
        with self._lock:
            self._used, self._files = sum(blocks) * _BLOCK_BYTES, len(blocks)
            self._measured = time.monotonic()

    def fits(self, nbytes: int) -> bool:
        """Return whether `nbytes` more bytes keep within the run's limit; nothing is counted."""
        return self._most_bytes is None or self._used + nbytes <= self._most_bytes

    def make_files(self, files: int) -> None:
        """Count files that are about to be made; raise RunFilesError where they are too many.

        Files that are refused are not counted. Nothing is counted where no limit is set.
        """
        most = self._most_files
        if most is None:
            return
        # The count is an estimate, so the files on disk are counted before any is refused.
        if self._files + files > most and time.monotonic() - self._measured > RECHECK_SECONDS:
            self.measure()
        with self._lock:
            if self._files + files > most:
                raise RunFilesError(
                    errno.EDQUOT, f"the run has {self._files} of {most} files that it may have"
                )
            self._files += files

    def spend(self, nbytes: int) -> None:
        """Add `nbytes` bytes, which were written, to the count."""
        with self._lock:
            self._used += nbytes


def _blocks(file: Path) -> int:
    try:
        return file.lstat().st_blocks
    except OSError:  # it was removed a moment ago
        return 0


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The size limits of a rank: `max_bytes`, or all but a twentieth of the file system.

    wait: whether the writer's caller waits for room, as a collector does: a full file system then
        raises an error, the caller tries again later, and no values are left out because the disk
        is full. The twentieth then stays free even with `max_bytes`: a collector's user chooses
        `max_bytes`, and does not own the disk.

    run: the limits of the whole run, besides the rank's own; None without such limits.
    """

    max_bytes: int | None = None
    wait: bool = False
    run: RunQuota | None = None


class RankQuota:
    """Counts the bytes that a rank takes, and says when values have to be left out.

    The file system is asked for its free room again after a second, 64 MiB or 256 new files.
    path: a folder on that file system. room: the limits.

    used: how many bytes the rank has taken. waits: `SizeLimits.wait`.
    """

    def __init__(self, path: Path, room: SizeLimits) -> None:
        self.used = 0
        self.waits = room.wait
        self._path = path
        self._max_bytes = room.max_bytes
        self._run = room.run
        self._room = 0
        self._files_left = 0
        self._files = 0  # made since the file system was last asked
        self._later = 0  # files that the next `publish` will make
        self._asked_at = -math.inf
        self._used_then = 0
        self._refused_until = 0.0

    def refusal(self, nbytes: int) -> str | None:
        """Return why `nbytes` more would be too much (one of REASONS); None where they fit.

        Nothing is counted. Where the writer's caller waits for room, a full disk raises OSError
        (ENOSPC), and "disk" is never returned.
        """
        reason = self._reason(nbytes)
        if reason == "disk" and self.waits:
            raise OSError(errno.ENOSPC, self._complaint())
        return reason

    def claim(self, nbytes: int) -> None:
        """Raise OSError (ENOSPC) where the disk has no room for `nbytes` more bytes.

        It is for bytes that are never left out, such as those of rows. So nothing is raised where
        the writer's caller does not wait for room, nor where `nbytes` exceed a limit of the rank or
        of the run.
        """
        if self.waits:
            self.refusal(nbytes)

    def made_files(self, files: int, later: int = 0) -> None:
        """Count `files` files about to be made, and `later` files that `publish` will make.

        `publish` is a method of the writer. Raises OSError (ENOSPC) where the disk has no room for
        `files` and the writer's caller waits for room; RunFilesError where the run may have no more
        files.
        """
        if self._run is not None:
            self._run.make_files(files + later)
        self._files += files + later
        self._later += later
        now = time.monotonic()
        if self._files > RECHECK_FILES or now - self._asked_at > RECHECK_SECONDS:
            self._ask(now)
        self.claim(files * FILE_BYTES)

    def refusals(self, sizes: Array) -> dict[int, str]:
        """Return {index of a record: the reason} for the records whose values have no room.

        Reasons are those of REASONS; the result is {} where all records fit. A record behind one
        that does not fit may fit. Raises OSError (ENOSPC) where the disk is full and the writer's
        caller waits for room.

        sizes: bytes of the values of each record.
        """
        # One question for all of them; each record by itself only where not all of them fit.
        if self.refusal(int(sizes.sum())) is None:
            return {}
        refused: dict[int, str] = {}
        taken = 0
        for row in np.flatnonzero(sizes).tolist():
            size = int(sizes[row])
            reason = self.refusal(taken + size)
            if reason is None:
                taken += size
            else:
                refused[row] = reason
        return refused

    def _reason(self, nbytes: int) -> str | None:
        if self._max_bytes is not None and self.used + nbytes > self._max_bytes:
            return "max_bytes"
        if self._run is not None and not self._run.fits(nbytes):
            return "max_run_size"
        now = time.monotonic()
        if now < self._refused_until:
            return "disk"
        if self._max_bytes is not None and not self.waits:
            return None
        since = self.used - self._used_then
        if since + nbytes > RECHECK_BYTES or now - self._asked_at > RECHECK_SECONDS:
            self._ask(now)
            since = 0
        full = since + nbytes > self._room or self._files >= self._files_left
        return "disk" if full else None

    def exhaust(self) -> None:
        """Treat the disk as full for the next second, because the file system refused a write."""
        self._refused_until = time.monotonic() + RECHECK_SECONDS

    def published(self) -> None:
        """Note that the writer's `publish` has made the files that were counted as `later`."""
        self._later = 0

    def spend(self, nbytes: int) -> None:
        """Add `nbytes` bytes, which were written, to the counts of the rank and of the run."""
        self.used += nbytes
        if self._run is not None:
            self._run.spend(nbytes)

    def take_up(self, nbytes: int) -> None:
        """Add `nbytes` bytes, which a resumed rank has on disk already, to the rank's count."""
        self.used += nbytes
        self._used_then += nbytes

    def _complaint(self) -> str:
        if self._files >= self._files_left:
            return "No inodes left on device beyond the twentieth that stays free"
        return f"{os.strerror(errno.ENOSPC)} beyond the twentieth that stays free"

    def _ask(self, now: float) -> None:
        system = os.statvfs(self._path)
        free = system.f_bavail - system.f_blocks // 20
        self._room = free * system.f_frsize
        # A file system that makes inodes as it needs them says that it has 0 of them.
        spare = system.f_favail - system.f_files // 20 - self._later
        self._files_left = spare if system.f_files else sys.maxsize
        self._files = 0
        self._asked_at = now
        self._used_then = self.used
