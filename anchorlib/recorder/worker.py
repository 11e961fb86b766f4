"""`Worker`: the interface between a queue and the thread or process that empties its ring."""

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
        """Have the ring emptied now, instead of when the thread or process looks at it next."""

    def request(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Request a flush or the close; return the future of the answer.

        after: how many slots (records and statements) of the ring have to be in the sink before the
            request is carried out.
        timeout: seconds that it may take; None: as long as it takes.
        """

    def revoke(self) -> None:
        """Make the sink write nothing more."""

    def cancel(self) -> None:
        """Cancel the futures of all requests that are not answered yet."""

    def end(self) -> None:
        """End the thread or process and free what it has, once the close was answered."""

    def defined(self, slot: int, text: bytes) -> None:
        """Keep the JSON of a definition (of a series and so on), which slot `slot` will hold.

        A drain that replaces a dead one may begin after that slot of the ring, and still needs the
        definition.
        """

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Allocate memory outside the ring, for the values of a record that is too large for it.

        Returns (its number, its address in this process, an object that keeps it alive).

        Raises OSError, MemoryError.
        """

    @property
    def is_over(self) -> bool:
        """Whether nothing empties the ring any more."""

    def warn(self, message: str) -> None:
        """Log `message` as a warning of anchorlib."""
