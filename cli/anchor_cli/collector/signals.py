"""Handles the signals to a collector: SIGTERM and Ctrl-C to end it, SIGHUP to read files again."""

from __future__ import annotations

import os
import queue
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from anchor_cli.exits import ExitCode

__all__ = ["Signals"]

_END: Final = (signal.SIGTERM, signal.SIGINT)
_AGAIN: Final = signal.SIGHUP
_WAKING_BYTES: Final = 4096


class Signals:
    """A context that catches SIGTERM, Ctrl-C and SIGHUP, so that `wait` can wait for them.

    A second SIGTERM or Ctrl-C ends the process at once. When the context ends, the handlers that
    were set before are set again, for a Python process that called the command and goes on. Where
    the handler before was not set from Python, the signal gets the system's default handler.
    """

    def __init__(self) -> None:
        # The handler only queues the signal's number: it may interrupt code that holds a lock.
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = False

    def __enter__(self) -> Self:
        # The system may deliver a signal to a thread of gRPC, which does not wake the main thread,
        # and Python runs handlers in the main thread alone. So it waits for a socket, into which
        # Python writes a byte whichever thread a signal came to.
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)  # as Python asks for
        self._fd_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._before = {one: signal.signal(one, self._take) for one in (*_END, _AGAIN)}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            # None stands for a handler that was not Python's, which cannot be put back.
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._fd_before)
        self._woken.close()
        self._waker.close()

    def wait(self, on_again: Callable[[], None]) -> None:
        """Blocks until the first SIGTERM or Ctrl-C; calls `on_again` for each SIGHUP until then."""
        while True:
            self._woken.recv(_WAKING_BYTES)  # before the queue: what comes later wakes again
            with suppress(queue.Empty):
                while True:
                    if self._came.get_nowait() != _AGAIN:
                        return
                    on_again()

    def _take(self, number: int, frame: object) -> None:  # noqa: ARG002  # as signal calls it
        if number in _END:
            if self._ending:
                # A normal exit would wait for threads that are still busy. Acknowledged records
                # are in the store all the same.
                os._exit(ExitCode.INTERRUPTED)
            self._ending = True
        self._came.put(number)
