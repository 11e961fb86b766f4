"""`Worker`: the interface between a queue and the thread or process that empties its ring.

The trainer puts records into the queue's ring; a drain takes them out and hands them to a sink,
which stores or sends them.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Literal, Protocol

__all__ = ["Worker"]


class Worker(Protocol):
    """The interface of the thread or process that runs a drain, which empties a ring into a sink.

    Any thread of the trainer may call the methods, one at a time.
    """

    ready: threading.Event
    """Set once the drain has begun, or has failed to begin."""

    given_up: str
    """The end of a warning: what becomes of a run whose store does not answer."""

    def wake(self) -> None:
        """Signal that the ring is to be emptied now, before the next regular look; do not wait."""

    def request(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Request a flush or the close; return the future of the drain's answer, an `Answer`.

        Does not wait for the answer. The future is cancelled if nothing empties the ring any more.

        after: how many slots (records and statements) of the ring have to be in the sink before the
            request is carried out.

        timeout: seconds that the request may take; None: as long as it takes.
        """

    def revoke(self) -> None:
        """Make the sink write nothing more: records that it does not have yet are lost."""

    def cancel(self) -> None:
        """Cancel the futures of all requests that are not answered yet; a process is killed."""

    def end(self) -> None:
        """Wait until the thread or process has ended, and free what it has.

        The caller has waited for the answer to the close, or has called `cancel`. A process that
        does not end is killed. A thread is not waited for: it ends by itself after the close.
        """

    def defined(self, slot: int, text: bytes) -> None:
        """Keep the JSON of a definition, which slot `slot` of the ring will hold.

        A definition says which series and phase, or dtype and shape, a number in slots stands for.
        A drain that replaces a dead drain may begin after slot `slot`, and still needs it. A
        worker whose drain is never replaced may keep nothing.
        """

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Allocate memory outside the ring, for the values of a record that is too large for it.

        Returns (number, address, object) of the memory: the record's slot names the memory by this
        number, the address is that in this process, and the memory lives at least as long as the
        object.

        Raises OSError or MemoryError if there is not so much memory.
        """

    @property
    def is_over(self) -> bool:
        """Whether nothing empties the ring any more."""

    def warn(self, message: str) -> None:
        """Log `message` as a warning of anchorlib."""
