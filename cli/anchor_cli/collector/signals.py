"""What a collector is told by signals: to end, to end at once, to read its files again."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from anchor_cli.exits import ExitCode

__all__ = ["Signals"]

_END: Final = (signal.SIGTERM, signal.SIGINT)
_AGAIN: Final = signal.SIGHUP
# A signal that the system gives to a thread of gRPC's wakes nobody: handlers run in this thread,
# when it next does anything.
_LOOK_SECONDS: Final = 1.0


class Signals:
    """Takes signals from its construction on; `wait` returns when it is time to end.

    A second SIGTERM or Ctrl-C ends the process at once.
    """

    def __init__(self) -> None:
        # The handlers only pass on what came: a signal may come in the middle of anything.
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = False
        for number in (*_END, _AGAIN):
            signal.signal(number, self._take)

    def wait(self, on_again: Callable[[], None]) -> None:
        """Calls `on_again` for each SIGHUP until the first SIGTERM or Ctrl-C."""
        while True:
            with suppress(queue.Empty):
                if self._came.get(timeout=_LOOK_SECONDS) != _AGAIN:
                    return
                on_again()

    def _take(self, number: int, frame: object) -> None:  # noqa: ARG002  # as signal calls it
        if number in _END:
            if self._ending:
                # Threads that are in the middle of something would be waited for otherwise. What
                # was acknowledged is in the store all the same.
                os._exit(ExitCode.INTERRUPTED)
            self._ending = True
        self._came.put(number)
