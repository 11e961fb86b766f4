"""A limit on the memory in which all readers of this process keep columns and row numbers."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Protocol
from weakref import ref

from anchorlib.store.read.usable_memory import memory_here

__all__ = ["COLUMN_MEMORY", "ColumnMemory", "Holder"]


class Holder(Protocol):
    """An object that caches what it has read, and reads it again after it had to drop it."""

    def let_go(self) -> None:
        """Drop what this holder has cached, to free memory."""
        ...


class ColumnMemory:
    """Limits how many bytes all holders (readers that cache columns) cache together.

    A run of a thousand ranks is read rank by rank, and the memory for all their columns would grow
    with the ranks. So when the limit is passed, the holders that took room earliest drop what they
    cache. The holder that takes room always gets it, however much it takes. Holders are referenced
    weakly: the room of a holder that was garbage-collected is free again.

    most: the limit in bytes; None is a quarter of the memory of this machine, or of its container
        where that has less.
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
        """The bytes that all holders cache now."""
        with self._lock:
            self._forget_gone()
            return self._taken

    def take(self, holder: Holder, nbytes: int) -> None:
        """Note that `holder` now caches `nbytes` bytes in all, in place of what it noted before.

        Where the limit is passed, the other holders are made to drop what they cache, one by one
        from the holder that took room earliest, until the limit is kept or no other holder is left.
        """
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
        """Replace the lock in a forked child: a thread of the parent may hold the old one."""
        self._lock = threading.Lock()


COLUMN_MEMORY = ColumnMemory()
"""The limit of this process, which all runs that it reads share."""

os.register_at_fork(after_in_child=COLUMN_MEMORY.unlock)
