"""Streams that do not move: a client that takes no answers keeps its stream waiting for ever.

One that says nothing is noticed by the stream itself, which waits for it; and one that is gone
acknowledges no ping, so that gRPC ends its connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AnswerWatch"]

_LOOKS: Final = 4  # in the time that an answer may take


class AnswerWatch:
    """Ends calls of which an answer was not taken for `seconds`, by a thread of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[float, Callable[[], object]]] = {}
        self._over = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def answering(self, end: Callable[[], object]) -> Iterator[None]:
        """An answer is on its way; `end` is called where that takes too long."""
        token = object()
        with self._changed:
            self._waiting[token] = (time.monotonic(), end)
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name="anchor-watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(token, None)

    def stop(self) -> None:
        """End no more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._changed.wait_for(lambda: self._over, self._seconds / _LOOKS):
                late = time.monotonic() - self._seconds
                for token, (since, end) in list(self._waiting.items()):
                    if since < late:
                        del self._waiting[token]
                        end()
