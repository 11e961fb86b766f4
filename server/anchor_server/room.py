"""Memory for records that arrive in fragments, all streams together."""

from __future__ import annotations

import os
import threading

from anchor_server.refusals import Refusal
from anchorlib.wire import UNFINISHED_SHARE, Kind

__all__ = ["Room"]


class Room:
    """Bounds what unfinished records hold, `limit` bytes (default: a share of the memory).

    A record larger than that is taken while it is the only one: it could never come otherwise.
    """

    def __init__(self, limit: int | None = None) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._limit = int(pages * UNFINISHED_SHARE) if limit is None else limit
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self._used

    def take(self, nbytes: int) -> None:
        """Raises a Refusal that will pass where others have taken the room."""
        with self._lock:
            if self._used and self._used + nbytes > self._limit:
                raise Refusal(
                    Kind.MEMORY,
                    f"unfinished records of other streams hold {self._used} bytes of this "
                    f"collector's memory: there is no room for {nbytes} more just now",
                )
            self._used += nbytes

    def give_back(self, nbytes: int) -> None:
        """What was taken is free again."""
        with self._lock:
            self._used -= nbytes
