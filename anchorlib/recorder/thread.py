"""A drain in a thread of the trainer: where there is no recorder process, or none is wanted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Literal

import numpy as np

from anchorlib.block import Buffer
from anchorlib.recorder.asks import Answer, Ask, Asked
from anchorlib.recorder.drain import Before, Drain
from anchorlib.recorder.ring import Ring
from anchorlib.sinks import Flushing, Sink

__all__ = ["RecorderThread"]

_log = logging.getLogger("anchorlib")

# Small records wait this long for company, so that one hand-over serves many of them: while the
# drain is at work, Python runs nothing of the training's.
LINGER: Final = 0.05


class RecorderThread:
    """A worker, and the host of its drain.

    on_start: called first in the thread.
    asked, before, lent: what a recorder process that ended has left.
    """

    given_up = "the run stays locked until it does"

    def __init__(
        self,
        ring: Ring,
        sink: Sink,
        on_start: Callable[[], None] = lambda: None,
        *,
        asked: Asked | None = None,
        before: Before | None = None,
        lent: Mapping[int, Buffer] | None = None,
    ) -> None:
        self._bell = threading.Event()
        self.ready = threading.Event()
        self.ready.set()
        self._asked = asked or Asked()
        self._lent: dict[int, Buffer] = dict(lent or {})
        self._ended = False
        self._on_start = on_start
        self._drain = Drain(ring, sink, self, before)
        for ask in self._asked.pending:
            self._drain.asks.add(ask)
        self._thread = threading.Thread(target=self._run, name="anchorlib-drain", daemon=True)
        self._thread.start()

    # -- as the queue's worker

    def wake(self) -> None:
        """The drain looks at the ring at once."""
        self._bell.set()

    def ask(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Ask the drain for something."""
        ask, future = self._asked.new(what, after, timeout)
        self._drain.asks.add(ask)
        if self._ended:
            self.cancel()
        self.wake()
        return future

    def revoke(self) -> None:
        """The sink writes nothing more."""
        self._drain.revoke()

    def cancel(self) -> None:
        """End every wait."""
        self._asked.cancel()

    def end(self) -> None:
        """The thread ends by itself after the close."""

    def defined(self, slot: int, text: bytes) -> None:
        """The one drain there is has read it in the ring."""

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Memory that is given back when the drain has read it."""
        memory = np.empty(max(1, nbytes), np.uint8)
        number = memory.ctypes.data
        self._lent[number] = memory.data
        return number, number, memory

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return self._ended

    # -- as the drain's host

    def answer(self, ask: Ask, answer: Answer) -> None:
        """Hand the answer to who waits."""
        self._asked.answer(ask.number, answer)

    def flushing(self, ask: Ask, flushing: Flushing, show: Callable[[], None]) -> None:  # noqa: ARG002  # the drain shows by itself soon
        """Who asked waits for it."""
        self.answer(ask, flushing)

    def warn(self, message: str) -> None:
        """Log it."""
        _log.warning("anchorlib: %s", message)

    def outside(self, number: int) -> memoryview:
        """Memory that was lent."""
        return memoryview(self._lent[number])

    def give_back(self, number: int) -> None:
        """The memory is free."""
        self._lent.pop(number, None)

    def _run(self) -> None:
        try:
            self._on_start()
            while not self._drain.closed:
                self._bell.wait(self._drain.patience(LINGER))
                self._bell.clear()
                self._drain.work()
        finally:  # however it ends, nobody waits for this thread any more
            self._ended = True
            self.cancel()
