"""A stream's requests, read ahead by a thread of their own.

While one batch is being written the next one arrives; and a stream can be told to end although its
client says nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import grpc

from anchor_server.refusals import Refusal

__all__ = ["Inbox"]

_BATCH = 8  # messages written in one go, while as many more may arrive: what a stream may cost


class Inbox:
    """Takes requests off a stream, a batch ahead of who reads `batches`.

    `on_over` is called, by the thread that reads, when there is nothing more to read.
    """

    def __init__(self, requests: Iterator[bytes], *, on_over: Callable[[Inbox], None]) -> None:
        self._changed = threading.Condition()
        self._on_over = on_over
        self._waiting: deque[bytes] = deque()
        self._over = False
        self._ending: Refusal | None = None
        self._thread = threading.Thread(
            target=self._read, args=(requests,), name="anchor-inbox", daemon=True
        )
        self._thread.start()

    def first(self, timeout: float) -> bytes | None:
        """The first request; None where the stream ended, or said nothing in `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(self._ready, timeout)
            if not self._waiting and self._ending is not None:
                raise self._ending
            message = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return message

    def batches(self) -> Iterator[list[bytes]]:
        """What has arrived, together, until the stream ends; raises Refusal if it was told to."""
        while batch := self._take():
            yield batch

    def _take(self) -> list[bytes]:
        with self._changed:
            self._changed.wait_for(self._ready)
            if not self._waiting and self._ending is not None:
                raise self._ending
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
            self._changed.notify_all()
            return batch

    def end(self, refusal: Refusal) -> None:
        """Let what has arrived be dealt with, then end the stream; from any thread."""
        with self._changed:
            self._ending = self._ending or refusal
            self._changed.notify_all()

    def _ready(self) -> bool:
        return bool(self._waiting or self._over or self._ending)

    def _read(self, requests: Iterator[bytes]) -> None:
        try:
            for message in requests:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) < _BATCH or self._ending)
                    if self._ending:
                        return
                    self._waiting.append(message)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass  # the client is gone: what it sent is dealt with, and the stream ends
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            self._on_over(self)
