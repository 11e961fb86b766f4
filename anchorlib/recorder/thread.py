"""The thread of the trainer that empties the ring where there is no recorder process.

The drain is the object that takes records out of the ring and hands them to the sink, which stores
or sends them. The trainer puts records into the ring through its queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Literal

import numpy as np

from anchorlib.block import Buffer
from anchorlib.recorder.drain import Drain, PredecessorState
from anchorlib.recorder.drain_requests import Answer, PendingRequests, Request
from anchorlib.recorder.ring import Ring
from anchorlib.sinks import Flushing, Sink

__all__ = ["RecorderThread"]

_log = logging.getLogger("anchorlib")

# Seconds for which the drain waits for more small records, to hand many over at once: while the
# drain works, it holds Python's lock, and training stands still.
LINGER: Final = 0.05


class RecorderThread:
    """Empties a ring into `sink` in a thread of this process.

    For the queue it is the `Worker` that empties the ring; for the drain it is the `Host`, which
    answers the trainer.

    on_start: called first in the thread.

    pending, predecessor, lent: what a recorder process that died has left: unanswered requests, the
        state of its drain, and {number: memory} of records too large for the ring; None where no
        process died.
    """

    given_up = "the run stays locked until it does"

    def __init__(
        self,
        ring: Ring,
        sink: Sink,
        on_start: Callable[[], None] = lambda: None,
        *,
        pending: PendingRequests | None = None,
        predecessor: PredecessorState | None = None,
        lent: Mapping[int, Buffer] | None = None,
    ) -> None:
        self._bell = threading.Event()
        self.ready = threading.Event()
        self.ready.set()
        self._requests = pending or PendingRequests()
        self._lent: dict[int, Buffer] = dict(lent or {})
        self._ended = False
        self._on_start = on_start
        self._drain = Drain(ring, sink, self, predecessor)
        for request in self._requests.unanswered:
            self._drain.requests.add(request)
        self._thread = threading.Thread(target=self._run, name="anchorlib-drain", daemon=True)
        self._thread.start()

    # -- as the queue's worker

    def wake(self) -> None:
        """Signal the thread to empty the ring now, before its next regular look; do not wait."""
        self._bell.set()

    def request(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Request a flush or the close from the drain; return the future of its answer.

        Does not wait for the answer, which is an `Answer`. The future is cancelled if the thread
        has ended.

        after: how many slots (records and statements) of the ring have to be in the sink before the
            request is carried out.

        timeout: seconds that the request may take; None: as long as it takes.
        """
        request, future = self._requests.new(what, after, timeout)
        self._drain.requests.add(request)
        if self._ended:
            self.cancel()
        self.wake()
        return future

    def revoke(self) -> None:
        """Make the sink write nothing more: records that it does not have yet are lost."""
        self._drain.revoke()

    def cancel(self) -> None:
        """Cancel the futures of all requests that are not answered yet."""
        self._requests.cancel()

    def end(self) -> None:
        """Do nothing: the thread ends by itself after the close."""

    def defined(self, slot: int, text: bytes) -> None:
        """Do nothing: this thread reads definitions from the ring, and no drain comes after it."""

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Allocate memory for one record that is too large for the ring.

        Returns (number, address, object) of the memory: the number names it in `outside` and
        `give_back`, and the memory lives at least as long as the object.
        """
        memory = np.empty(max(1, nbytes), np.uint8)
        number = memory.ctypes.data
        self._lent[number] = memory.data
        return number, number, memory

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, so that nothing empties the ring any more."""
        return self._ended

    # -- as the drain's host

    def answer(self, request: Request, answer: Answer) -> None:
        """Complete the future of `request` with its answer."""
        self._requests.answer(request.number, answer)

    def flushing(self, request: Request, flushing: Flushing, show: Callable[[], None]) -> None:  # noqa: ARG002  # the drain shows by itself soon
        """Complete the future of `request` with `flushing`; the thread that asked calls its `wait`.

        show: not used, since the drain updates the counters by itself soon.
        """
        self.answer(request, flushing)

    def warn(self, message: str) -> None:
        """Log `message` as a warning of anchorlib."""
        _log.warning("anchorlib: %s", message)

    def outside(self, number: int) -> memoryview:
        """Return the memory `number` that `lend` has allocated for a large record."""
        return memoryview(self._lent[number])

    def give_back(self, number: int) -> None:
        """Release the memory `number`, as the record in it is in the sink."""
        self._lent.pop(number, None)

    def _run(self) -> None:
        try:
            self._on_start()
            while not self._drain.closed:
                self._bell.wait(self._drain.patience(LINGER))
                self._bell.clear()
                self._drain.work()
        finally:  # also after a defect, or the trainer would wait for answers for ever
            self._ended = True
            self.cancel()
