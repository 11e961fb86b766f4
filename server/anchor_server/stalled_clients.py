"""Ends streams whose client does not read the answers: such a stream would wait for ever.

Other faults of clients are noticed elsewhere: a stream waits with a timeout for a client that sends
nothing; a client that is gone answers no ping, so that gRPC closes its connection.
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

_LOOKS: Final = 4  # how often the watch looks in the time that an answer may take


class AnswerWatch:
    """A thread that ends calls whose client has not read an answer for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[float, Callable[[], object]]] = {}
        self._over = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def answering(self, end: Callable[[], object]) -> Iterator[None]:
        """A context in which one answer is sent to a client.

        The answer is taken for read when the context is left. If that does not happen within the
        `seconds` of this watch, the watching thread calls `end`, once.

        end: ends the call.
        """
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
        """Stops the watching thread and waits for its end; after that no call is ended."""
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
