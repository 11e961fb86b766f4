"""What a queue needs of the place where its ring is drained: a thread, or a process."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Literal, Protocol

__all__ = ["Worker"]


class Worker(Protocol):
    """Runs a drain. Any thread of the trainer may call it, one at a time."""

    ready: threading.Event
    """Set once the drain has begun, or never will."""

    given_up: str
    """What becomes of a run whose store does not answer."""

    def wake(self) -> None:
        """There is something to do."""

    def ask(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Ask for something, once the slots below `after` are in the sink."""

    def revoke(self) -> None:
        """The sink writes nothing more."""

    def cancel(self) -> None:
        """Nobody waits any more for what was asked."""

    def end(self) -> None:
        """The session is over."""

    def defined(self, slot: int, text: bytes) -> None:
        """`slot` will be a definition, which a drain that begins behind it has to know."""

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Memory for the values of one record: its number, its address here, and what keeps it.

        Raises OSError, MemoryError.
        """

    @property
    def is_over(self) -> bool:
        """Whether nothing drains the ring any more."""

    def warn(self, message: str) -> None:
        """A line for the log."""
