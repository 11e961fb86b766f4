"""A stream's requests, read ahead by a thread of their own.

While one batch is being written the next one arrives; and a stream can be told to end although its
client says nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc

from anchor_server.refusals import Refusal
from anchorlib.wire import AHEAD_BYTES, Kind

__all__ = ["Inbox", "Patience"]

_BATCH = 8  # messages written in one go, while as many more may arrive: what a stream may cost


class Patience(NamedTuple):
    """How many seconds a client may be silent, and of what kind its silence is after that."""

    seconds: float
    kind: Kind

    @property
    def refusal(self) -> Refusal:
        """How its stream ends."""
        said = f"the stream said nothing for {self.seconds:g} s"
        if self.kind is Kind.IDLE:
            return Refusal(self.kind, f"{said}: come back when there is something to say")
        return Refusal(self.kind, f"{said} in the middle of a sentence")


class Inbox:
    """Takes requests off a stream, a batch and `ahead` bytes ahead of who reads `batches`.

    `on_over` is called, by the thread that reads, when there is nothing more to read.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        *,
        on_over: Callable[[Inbox], None],
        ahead: int = AHEAD_BYTES,
    ) -> None:
        self._ahead = ahead
        self._changed = threading.Condition()
        self._on_over = on_over
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._over = False
        self._ending: Refusal | None = None
        self._thread = threading.Thread(
            target=self._read, args=(requests,), name="anchor-inbox", daemon=True
        )
        self._thread.start()

    def first(self, timeout: float) -> bytes | None:
        """The first request; None where the stream ended. Refusal after `timeout` seconds."""
        batch = self._take(Patience(timeout, Kind.STALLED), 1)
        return batch[0] if batch else None

    def batches(self, patience: Callable[[], Patience]) -> Iterator[list[bytes]]:
        """What has arrived, together, until the stream ends.

        patience: with the client just now. Raises Refusal where that ends, or where the stream was
        told to end.
        """
        while batch := self._take(patience(), _BATCH):
            yield batch

    def _take(self, patience: Patience, most: int) -> list[bytes]:
        with self._changed:
            if not self._changed.wait_for(self._ready, patience.seconds):
                raise patience.refusal
            if not self._waiting and self._ending is not None:
                raise self._ending
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), most))]
            self._bytes -= sum(map(len, batch))
            self._changed.notify_all()
            return batch

    def end(self, refusal: Refusal) -> None:
        """Let what has arrived be dealt with, then end the stream; from any thread."""
        with self._changed:
            self._ending = self._ending or refusal
            self._changed.notify_all()

    def _ready(self) -> bool:
        return bool(self._waiting or self._over or self._ending)

    @property
    def _has_room(self) -> bool:
        return len(self._waiting) < _BATCH and self._bytes < self._ahead

    def _read(self, requests: Iterator[bytes]) -> None:
        try:
            for message in requests:
                with self._changed:
                    self._changed.wait_for(lambda: self._has_room or self._ending)
                    if self._ending:
                        return
                    self._waiting.append(message)
                    self._bytes += len(message)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass  # the client is gone: what it sent is dealt with, and the stream ends
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            self._on_over(self)
