"""What happens when the disk is full: how much a run may still take there, and who is refused.

A run takes `max_bytes`, or all but a twentieth of the file system: a twentieth of its bytes, and of
the files that it can hold, since a file system that has no inodes left is as full as another.
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

__all__ = ["NO_ROOM", "REASONS", "Budget", "Room", "RunFilesError", "RunRoom"]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where the file system, or what a user may have of it, is full."""

REASONS = ("max_bytes", "max_run_size", "disk")
"""Why values are left out: a bound of the rank, one of the run, or a disk that is nearly full."""

Array = np.ndarray[Any, Any]

RECHECK_BYTES = 64 << 20
RECHECK_SECONDS = 1.0
RECHECK_FILES = 256
_BLOCK_BYTES = 512  # as st_blocks counts, whatever the file system does
FILE_BYTES = 4096  # that a file takes, though it is small


class RunFilesError(OSError):
    """A run has as many files as it may have."""


class RunRoom:
    """What all ranks of a run take together, as this process writes them.

    run: its directory. bound: how many bytes and how many files and folders it may have. Any
    thread may add.
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
        """So much from now on; None is no bound."""
        self._most_bytes, self._most_files = nbytes, files

    def measure(self) -> None:
        """Takes over what the run takes now; parts of files that nobody wrote take nothing."""
        blocks = [_blocks(file) for file in self._run.rglob("*")]
        with self._lock:
            self._used, self._files = sum(blocks) * _BLOCK_BYTES, len(blocks)
            self._measured = time.monotonic()

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so many more."""
        return self._most_bytes is None or self._used + nbytes <= self._most_bytes

    def make_files(self, files: int) -> None:
        """Counts files that are about to be made. Raises RunFilesError where they are too many."""
        most = self._most_files
        if most is None:
            return
        # What is counted is about what is made: before a refusal those that are there are counted.
        if self._files + files > most and time.monotonic() - self._measured > RECHECK_SECONDS:
            self.measure()
        with self._lock:
            if self._files + files > most:
                raise RunFilesError(
                    errno.EDQUOT, f"the run has {self._files} of {most} files that it may have"
                )
            self._files += files

    def spend(self, nbytes: int) -> None:
        """Counts bytes that were written."""
        with self._lock:
            self._used += nbytes


def _blocks(file: Path) -> int:
    try:
        return file.lstat().st_blocks
    except OSError:  # it was removed a moment ago
        return 0


@dataclass(frozen=True, slots=True)
class Room:
    """What a rank may take: `max_bytes`, or all but a twentieth of the file system.

    wait: where the file system is full, nothing is left out: it is an error, and may pass. The
        twentieth is left free beside `max_bytes` too: whoever asks for that much is not who owns
        the disk.
    """

    max_bytes: int | None = None
    wait: bool = False
    run: RunRoom | None = None


class Budget:
    """Counts what is written, and says when values have to be left out.

    The file system is asked once a second or 64 MiB at most.
    """

    def __init__(self, path: Path, room: Room) -> None:
        self.used = 0
        self.waits = room.wait
        self._path = path
        self._max_bytes = room.max_bytes
        self._run = room.run
        self._room = 0
        self._files_left = 0
        self._files = 0  # made since the file system was asked
        self._later = 0  # to be made by `publish`
        self._asked_at = -math.inf
        self._used_then = 0
        self._refused_until = 0.0

    def refusal(self, nbytes: int) -> str | None:
        """Why `nbytes` more would be too much ("max_bytes" or "disk"), or None.

        Raises OSError (ENOSPC) instead of "disk" where the writer's caller waits for room.
        """
        reason = self._reason(nbytes)
        if reason == "disk" and self.waits:
            raise OSError(errno.ENOSPC, self._complaint())
        return reason

    def claim(self, nbytes: int) -> None:
        """Raises OSError (ENOSPC) where `nbytes` are too many and the writer's caller waits.

        For what others than those who wait have to keep, however full it is.
        """
        if self.waits:
            self.refusal(nbytes)

    def made_files(self, files: int, later: int = 0) -> None:
        """Counts files that are about to be made, and those that `publish` makes for them later.

        Raises OSError (ENOSPC) where there is no room, and the writer's caller waits for some;
        RunFilesError where the run may have no more.
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
        """Which of several records find no room, in order, and why; raises as `refusal` does."""
        # Asked once: each record by itself only where not all of them fit.
        if self.refusal(int(sizes.sum())) is None:
            return {}
        found: dict[int, str] = {}
        taken = 0
        for row in np.flatnonzero(sizes).tolist():
            size = int(sizes[row])
            reason = self.refusal(taken + size)
            if reason is None:
                taken += size
            else:
                found[row] = reason
        return found

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
        """The file system refused a write: nothing fits for the next second."""
        self._refused_until = time.monotonic() + RECHECK_SECONDS

    def published(self) -> None:
        """The files that were to be made later are there."""
        self._later = 0

    def spend(self, nbytes: int) -> None:
        """Counts bytes that were written."""
        self.used += nbytes
        if self._run is not None:
            self._run.spend(nbytes)

    def take_up(self, nbytes: int) -> None:
        """Counts bytes that are there already."""
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
        # File systems that make inodes as they need them say that they have none at all.
        spare = system.f_favail - system.f_files // 20 - self._later
        self._files_left = spare if system.f_files else sys.maxsize
        self._files = 0
        self._asked_at = now
        self._used_then = self.used
