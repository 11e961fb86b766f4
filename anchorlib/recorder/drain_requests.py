"""The requests of a trainer to its drain, which are to flush and to close.

They do not pass through the ring. Each is carried out as soon as all slots that were in the ring
before it have been handed to the sink.
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

__all__ = ["Answer", "Host", "PendingRequests", "Request", "RequestQueue"]

Answer: TypeAlias = int | Flushing | Exception
"""The answer to a request. For a flush: 0 once it is done, or the flush to wait for. For a close:
how many records are lost. For a flush or close that failed: the exception."""


@dataclass(frozen=True, slots=True)
class Request:
    """A trainer's request to its drain: a flush, or the close that ends a session.

    number: the request's identity, by which the answer names the request.
    after: how many slots (records and statements) of the ring, counted from the first slot ever,
        have to be in the sink before the request is carried out.
    timeout: seconds that the request may take; None: as long as it takes.
    created_at: the monotonic time from which `timeout` counts.
    """

    what: Literal["flush", "close"]
    number: int
    after: int
    timeout: float | None
    created_at: float

    @property
    def left(self) -> float | None:
        """Seconds until this request times out, at least 0; None if it has no timeout."""
        return (
            None
            if self.timeout is None
            else max(0.0, self.created_at + self.timeout - time.monotonic())
        )


class RequestQueue:
    """The requests (flush, close) that a drain, which empties a ring, has yet to carry out.

    They are carried out in order. Any thread may add a request.
    """

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._lock = threading.Lock()

    def add(self, request: Request) -> None:
        """Append a request."""
        with self._lock:
            self._waiting.append(request)

    def due(self, done: int) -> Request | None:
        """Remove and return the next request if it is due; otherwise return None.

        A request is due once `done` has reached its `after`.

        done: how many slots (records and statements) of the ring are in the sink.
        """
        with self._lock:
            if self._waiting and self._waiting[0].after <= done:
                return self._waiting.popleft()
        return None

    @property
    def next(self) -> Request | None:
        """The request that is to be carried out next, which stays listed; None if there is none."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    @property
    def closing(self) -> Request | None:
        """The waiting request to close, which stays listed; None if there is none."""
        with self._lock:
            return next((one for one in self._waiting if one.what == "close"), None)


class PendingRequests:
    """The requests (flush, close) that a trainer has made, and that have not been answered yet.

    The drain, which empties the ring, answers them. Any thread may call the methods.
    """

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Request, Future[Any]]] = {}
        self._numbers = 0
        self._lock = threading.Lock()

    def new(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> tuple[Request, Future[Any]]:
        """Make a request; return it and the future that `answer` will complete.

        after: how many slots (records and statements) of the ring have to be in the sink before the
            request is carried out.
        timeout: seconds that it may take; None: as long as it takes.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._numbers += 1
            request = Request(what, self._numbers, after, timeout, time.monotonic())
            self._pending[request.number] = request, future
        return request, future

    def answer(self, number: int, answer: Answer) -> None:
        """Complete the future of request `number`; a number that is not pending is ignored.

        answer: the result of the future; an exception is what its `result` raises.
        """
        with self._lock:
            _, future = self._pending.pop(number, (None, None))
        with suppress(InvalidStateError):  # the asking thread has cancelled the future
            if future is not None and isinstance(answer, Exception):
                future.set_exception(answer)
            elif future is not None:
                future.set_result(answer)

    def cancel(self) -> None:
        """Cancel the futures of all pending requests, as nobody is left to answer them."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if future.cancel():
                future.set_running_or_notify_cancel()  # without this, `wait` misses the cancel

    @property
    def unanswered(self) -> list[Request]:
        """The unanswered requests, in the order in which they were made."""
        with self._lock:
            return [request for request, _ in self._pending.values()]


class Host(Protocol):
    """The interface by which a drain calls the thread or process that runs it.

    A drain empties a ring into a sink; its host connects it with the trainer. The methods `answer`
    and `warn` never raise.
    """

    def answer(self, request: Request, answer: int | Exception) -> None:
        """Give the trainer the answer to its `request`.

        answer: for a close how many records were lost; an exception for a request that failed.
        """

    def flushing(self, request: Request, flushing: Flushing, show: Callable[[], None]) -> None:
        """Answer `request` once the flush that it asked for, and that has begun, is done.

        Must not block the drain.

        flushing: the flush of the sink; `flushing.wait` blocks until the flush is done.
        show: updates the counters in the ring; to be called when the flush has ended.
        """

    def warn(self, message: str) -> None:
        """Write a warning into the trainer's log."""

    def outside(self, number: int) -> memoryview:
        """Return the memory block `number`, which holds a record too large for the ring.

        Blocks until the trainer has handed the memory over.
        """

    def give_back(self, number: int) -> None:
        """Release the memory block `number`, as the record in it is in the sink."""
