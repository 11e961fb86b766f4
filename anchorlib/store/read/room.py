"""The memory that the readers of one run may keep columns and row numbers in."""

from __future__ import annotations

import os
import threading
from typing import Protocol

__all__ = ["Holder", "Room"]


class Holder(Protocol):
    """An object that keeps what it has read, and reads it again where it had to let it go."""

    def let_go(self) -> None:
        """Drops what was read."""
        ...


class Room:
    """Bounds the bytes that holders keep together: beyond them the earliest let go.

    A run of a thousand ranks is read rank by rank. What all of them keep would grow with the ranks,
    so that a rank that was gone through lets go where the room is needed for another one. The
    holder that takes room always has it, however much that is.

    most: bytes; None is a quarter of the machine's memory, below which nothing is read twice.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = _quarter() if most is None else most
        self.taken = 0
        self._held: dict[Holder, int] = {}  # the one that took room last is the last one
        self._lock = threading.Lock()

    def take(self, holder: Holder, nbytes: int) -> None:
        """Notes that a holder keeps so many bytes more."""
        with self._lock:
            self._held[holder] = self._held.pop(holder, 0) + nbytes
            self.taken += nbytes
            while self.taken > self.most and len(self._held) > 1:
                earliest = next(iter(self._held))
                self.taken -= self._held.pop(earliest)
                earliest.let_go()


def _quarter() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
