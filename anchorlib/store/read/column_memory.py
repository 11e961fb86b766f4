"""The memory that all readers of this process may keep columns and row numbers in."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Protocol
from weakref import ref

from anchorlib.store.read.usable_memory import memory_here

__all__ = ["ROOM", "ColumnMemory", "Holder"]


class Holder(Protocol):
    """An object that keeps what it has read, and reads it again where it had to let it go."""

    def let_go(self) -> None:
        """Drops what was read."""
        ...


class ColumnMemory:
    """Bounds the bytes that holders keep together: beyond them the earliest let go.

    A run of a thousand ranks is read rank by rank. What all of them keep would grow with the ranks,
    so that a rank that was gone through lets go where the room is needed for another one. The
    holder that takes room always has it, however much that is. It keeps no holder alive: what
    one held that is gone is free again.

    most: bytes; None is a quarter of the memory of this machine or, where that is less, container.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = memory_here() // 4 if most is None else most
        self._taken = 0
        self._held: dict[ref[Holder], int] = {}  # in the order in which holders took room
        # A holder may go at any moment, also in the middle of `take`: it is only noted then.
        self._gone: deque[ref[Holder]] = deque()
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """The bytes that all holders keep now."""
        with self._lock:
            self._forget_gone()
            return self._taken

    def take(self, holder: Holder, nbytes: int) -> None:
        """Notes that `holder` now keeps `nbytes` bytes in all; the earliest may have to let go."""
        with self._lock:
            self._forget_gone()
            own = ref(holder, self._gone.append)
            self._taken += nbytes - self._held.pop(own, 0)
            self._held[own] = nbytes
            while self._taken > self.most and len(self._held) > 1:
                earliest = next(iter(self._held))
                self._taken -= self._held.pop(earliest)
                if (oldest := earliest()) is not None:
                    oldest.let_go()

    def _forget_gone(self) -> None:
        while self._gone:
            self._taken -= self._held.pop(self._gone.popleft(), 0)

    def unlock(self) -> None:
        """Makes the room usable in a forked child, whose parent may have been taking some."""
        self._lock = threading.Lock()


ROOM = ColumnMemory()
"""The room of this process: all runs that it reads share it."""

os.register_at_fork(after_in_child=ROOM.unlock)
