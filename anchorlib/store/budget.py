"""How much a run may still take on disk: `max_bytes`, or all but a twentieth of the file system."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["REASONS", "Budget", "Room"]

REASONS = ("max_bytes", "disk")
"""Why values are left out: the run's own bound, or a file system that is nearly full."""

Array = np.ndarray[Any, Any]

RECHECK_BYTES = 64 << 20
RECHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """What a run may take: `max_bytes`, or all but a twentieth of the file system.

    wait: where the file system is full, nothing is left out: it is an error, and may pass.
    """

    max_bytes: int | None = None
    wait: bool = False


class Budget:
    """Counts what is written, and says when values have to be left out.

    The file system is asked once a second or 64 MiB at most.
    """

    def __init__(self, path: Path, room: Room, used: int) -> None:
        self.used = used
        self.waits = room.wait
        self._path = path
        self._max_bytes = room.max_bytes
        self._room = 0
        self._asked_at = -RECHECK_SECONDS
        self._used_then = used
        self._refused_until = 0.0

    def refusal(self, nbytes: int) -> str | None:
        """Why `nbytes` more would be too much ("max_bytes" or "disk"), or None.

        Raises OSError (ENOSPC) instead of "disk" where the writer's caller waits for room.
        """
        reason = self._reason(nbytes)
        if reason == "disk" and self.waits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return reason

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
        now = time.monotonic()
        if now < self._refused_until:
            return "disk"
        if self._max_bytes is not None:
            return None
        since = self.used - self._used_then
        if since + nbytes > RECHECK_BYTES or now - self._asked_at > RECHECK_SECONDS:
            self._ask(now)
            since = 0
        return "disk" if since + nbytes > self._room else None

    def exhaust(self) -> None:
        """The file system refused a write: nothing fits for the next second."""
        self._refused_until = time.monotonic() + RECHECK_SECONDS

    def spend(self, nbytes: int) -> None:
        """Counts bytes that were written."""
        self.used += nbytes

    def _ask(self, now: float) -> None:
        system = os.statvfs(self._path)
        free = system.f_bavail - system.f_blocks // 20
        self._room = free * system.f_frsize
        self._asked_at = now
        self._used_then = self.used
