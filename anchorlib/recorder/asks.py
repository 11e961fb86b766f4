"""What a trainer asks of its drain beside the records: to flush, to close.

An ask is answered when all that was in the ring before it has been handed to the sink.
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

__all__ = ["Answer", "Ask", "Asked", "Asks", "Host"]

Answer: TypeAlias = int | Flushing | Exception
"""Of a flush 0, or what waits for it; of a close how many records were not delivered; or what went
wrong."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A flush, or the close that ends a session.

    number: what the answer refers to. after: slots that come before it.
    timeout: seconds from `made` on; None is as long as it takes.
    """

    what: Literal["flush", "close"]
    number: int
    after: int
    timeout: float | None
    made: float

    @property
    def left(self) -> float | None:
        """Seconds until its time is up."""
        return (
            None if self.timeout is None else max(0.0, self.made + self.timeout - time.monotonic())
        )


class Asks:
    """Those that are not answered yet, in order; any thread may add one."""

    def __init__(self) -> None:
        self._waiting: deque[Ask] = deque()
        self._lock = threading.Lock()

    def add(self, ask: Ask) -> None:
        """Put it behind the others."""
        with self._lock:
            self._waiting.append(ask)

    def due(self, done: int) -> Ask | None:
        """The next one, taken out, if `done` slots are behind the drain."""
        with self._lock:
            if self._waiting and self._waiting[0].after <= done:
                return self._waiting.popleft()
        return None

    @property
    def next(self) -> Ask | None:
        """The one that is due next."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    @property
    def closing(self) -> Ask | None:
        """The close, if it was asked for."""
        with self._lock:
            return next((one for one in self._waiting if one.what == "close"), None)


class Asked:
    """The trainer's side: what was asked and not answered. Any thread may call it."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Ask, Future[Any]]] = {}
        self._numbers = 0
        self._lock = threading.Lock()

    def new(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> tuple[Ask, Future[Any]]:
        """An ask, and what its answer will be in."""
        future: Future[Any] = Future()
        with self._lock:
            self._numbers += 1
            ask = Ask(what, self._numbers, after, timeout, time.monotonic())
            self._pending[ask.number] = ask, future
        return ask, future

    def answer(self, number: int, answer: Answer) -> None:
        """Hand an answer to who waits for it."""
        with self._lock:
            _, future = self._pending.pop(number, (None, None))
        with suppress(InvalidStateError):  # who asked waits no longer
            if future is not None and isinstance(answer, Exception):
                future.set_exception(answer)
            elif future is not None:
                future.set_result(answer)

    def cancel(self) -> None:
        """Nobody answers any more."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if future.cancel():
                future.set_running_or_notify_cancel()  # `wait` sees it only then

    @property
    def pending(self) -> list[Ask]:
        """In the order in which they were asked."""
        with self._lock:
            return [ask for ask, _ in self._pending.values()]


class Host(Protocol):
    """What a drain says to its trainer. Nothing here raises."""

    def answer(self, ask: Ask, answer: int | Exception) -> None:
        """`ask` was done, or failed."""

    def flushing(self, ask: Ask, flushing: Flushing, show: Callable[[], None]) -> None:
        """What `ask` began; `show` brings counters up to date once it has ended."""

    def warn(self, message: str) -> None:
        """A line for the trainer's log."""

    def outside(self, number: int) -> memoryview:
        """The values of a record that has memory of its own."""

    def give_back(self, number: int) -> None:
        """Nobody reads that memory any more."""
