"""Bounds the memory that large records hold until their last fragment has arrived.

The bound is for all streams of a collector together.
"""

from __future__ import annotations

import threading

from anchor_server.refusals import Refusal
from anchorlib.store import memory_here
from anchorlib.wire import UNFINISHED_SHARE, FailureKind

__all__ = ["FragmentMemory"]


class FragmentMemory:
    """Counts and bounds the memory of records whose last fragment is still to come.

    A record larger than the limit is accepted while no other record is unfinished: otherwise such a
    record could never be received. Any thread may call the methods.

    limit: the most bytes; None takes a share of the memory of this machine or its container.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = int(memory_here() * UNFINISHED_SHARE) if limit is None else limit
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        """How many bytes unfinished records hold now."""
        return self._used

    def take(self, nbytes: int) -> None:
        """Reserves bytes for a record of which the first fragment has arrived.

        Raises a Refusal where the records of other streams leave too little room: the client then
        tries again later.
        """
        with self._lock:
            if self._used and self._used + nbytes > self._limit:
                raise Refusal(
                    FailureKind.MEMORY,
                    f"unfinished records of other streams hold {self._used} bytes of this "
                    f"collector's memory: there is no room for {nbytes} more just now",
                )
            self._used += nbytes

    def give_back(self, nbytes: int) -> None:
        """Gives back bytes that `take` reserved, because the record is complete or was given up."""
        with self._lock:
            self._used -= nbytes
