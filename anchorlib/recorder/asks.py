"""The asks of a trainer to its drain: to flush, and to close.

An ask is carried out when all slots that were in the ring before it have been handed to the sink.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from anchorlib.sinks import Flushing

__all__ = ["Answer", "Ask", "Asks", "Host", "OpenAsks"]

Answer: TypeAlias = int | Flushing | Exception
"""The answer to a flush: 0 once it is done, or the flush to wait for. The answer to a close: how
many records were not delivered. The answer to both where they failed: the fault."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A flush, or the close that ends a session.

    number: names the ask in its answer.
    after: how many slots of the ring come before the ask.
    timeout: seconds, from the time `made` (monotonic) on; None is as long as it takes.
    """

    what: Literal["flush", "close"]
    number: int
    after: int
    timeout: float | None
    made: float

    @property
    def left(self) -> float | None:
        """Seconds that are left of the timeout; None where there is no timeout."""
        return (
            None if self.timeout is None else max(0.0, self.made + self.timeout - time.monotonic())
        )


class Asks:
    """The drain's side: asks that are not carried out yet, in order; any thread may add one."""

    def __init__(self) -> None:
        self._waiting: deque[Ask] = deque()
        self._lock = threading.Lock()

    def add(self, ask: Ask) -> None:
        """Add an ask after the others."""
        with self._lock:
            self._waiting.append(ask)

    def due(self, done: int) -> Ask | None:
        """Take out the next ask, if all slots before it are among the first `done`; else None."""
        with self._lock:
            if self._waiting and self._waiting[0].after <= done:
                return self._waiting.popleft()
        return None

    @property
    def next(self) -> Ask | None:
        """The next ask; None where there is none."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    @property
    def closing(self) -> Ask | None:
        """The close; None where it was not asked for."""
        with self._lock:
            return next((one for one in self._waiting if one.what == "close"), None)


class OpenAsks:
    """The trainer's side: asks that are not answered yet. Any thread may call it."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Ask, Future[Any]]] = {}
        self._numbers = 0
        self._lock = threading.Lock()

    def new(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> tuple[Ask, Future[Any]]:
        """A new ask, and the future that gets its answer."""
        future: Future[Any] = Future()
        with self._lock:
            self._numbers += 1
            ask = Ask(what, self._numbers, after, timeout, time.monotonic())
            self._pending[ask.number] = ask, future
        return ask, future

    def answer(self, number: int, answer: Answer) -> None:
        """Set the answer in the future of ask `number`."""
        with self._lock:
            _, future = self._pending.pop(number, (None, None))
        with suppress(InvalidStateError):  # the asking thread has cancelled the future
            if future is not None and isinstance(answer, Exception):
                future.set_exception(answer)
            elif future is not None:
                future.set_result(answer)

    def cancel(self) -> None:
        """Cancel the futures of all asks: no answer comes any more."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if future.cancel():
                future.set_running_or_notify_cancel()  # without this, `wait` misses the cancel

    @property
    def pending(self) -> list[Ask]:
        """The unanswered asks, in the order in which they were made."""
        with self._lock:
            return [ask for ask, _ in self._pending.values()]


class Host(Protocol):
    """What a drain needs of the thread or process that runs it. `answer` and `warn` never raise."""

    def answer(self, ask: Ask, answer: int | Exception) -> None:
        """Give the trainer the answer to `ask`."""

    def flushing(self, ask: Ask, flushing: Flushing, show: Callable[[], None]) -> None:
        """Answer `ask` by the flush that it began.

        show: updates the counters in the ring, to be called when the flush has ended.
        """

    def warn(self, message: str) -> None:
        """Write a warning into the trainer's log."""

    def outside(self, number: int) -> memoryview:
        """The memory outside the ring that was lent under `number`."""

    def give_back(self, number: int) -> None:
        """Forget the memory that was lent under `number`: its values are in the sink."""
