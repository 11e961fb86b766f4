"""The interface between a queue and the thread or process that drains its ring."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Literal, Protocol

__all__ = ["Worker"]


class Worker(Protocol):
    """Runs a drain. Any thread of the trainer may call it, one at a time."""

    ready: threading.Event
    """Set once the drain has begun, or has failed to begin."""

    given_up: str
    """The end of a warning: what becomes of a run whose store does not answer."""

    def wake(self) -> None:
        """Have the drain look at the ring now."""

    def ask(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Ask for a flush or the close, to begin once the slots below `after` are in the sink.

        timeout: seconds that it may take; None is as long as it takes. The future gets the answer.
        """

    def revoke(self) -> None:
        """Let the sink write nothing more."""

    def cancel(self) -> None:
        """Cancel the futures of all that was asked and not answered."""

    def end(self) -> None:
        """Finish, after the close: the session is over."""

    def defined(self, slot: int, text: bytes) -> None:
        """Note that `slot` will hold the definition `text`, for drains that begin behind it."""

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Memory for the values of one record, outside the ring.

        Returns its number, its address in this process, and an object that keeps it alive.

        Raises OSError, MemoryError.
        """

    @property
    def is_over(self) -> bool:
        """Whether nothing drains the ring any more."""

    def warn(self, message: str) -> None:
        """Log a warning."""
