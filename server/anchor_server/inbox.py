"""Reads the requests of a Push stream ahead, in a thread for each stream.

So the next batch arrives while one batch is being written, and a stream can be ended although its
client sends nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc

from anchor_server.refusals import Refusal
from anchorlib.wire import AHEAD_BYTES, FailureKind

__all__ = ["Inbox", "Patience"]

_BATCH = 8  # messages written in one go, while as many more may arrive; bounds a stream's memory


class Patience(NamedTuple):
    """How long a client may send nothing, and how its stream is refused after that.

    seconds: how long. kind: the kind of the refusal, IDLE between records, STALLED otherwise.
    """

    seconds: float
    kind: FailureKind

    @property
    def refusal(self) -> Refusal:
        """The refusal that ends a stream after its client has sent nothing for `seconds`."""
        said = f"the stream said nothing for {self.seconds:g} s"
        if self.kind is FailureKind.IDLE:
            return Refusal(self.kind, f"{said}: connect again when there is something to send")
        return Refusal(self.kind, f"{said} in the middle of a record")


class Inbox:
    """A bounded queue of a stream's requests, which a thread fills and `batches` empties.

    requests: the unparsed requests, as gRPC yields them.
    on_over: called by the reading thread, with this inbox, when the thread ends reading.
    ahead: the thread reads on while fewer than this many bytes, and fewer than 8 requests, wait.
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
        """Waits for the first request, takes it out of the queue, and returns it.

        Returns None where the stream ended without a request. Raises a Refusal where no request
        comes within `timeout` seconds, and where `end` was called before one came.
        """
        batch = self._take(Patience(timeout, FailureKind.STALLED), 1)
        return batch[0] if batch else None

    def batches(self, patience: Callable[[], Patience]) -> Iterator[list[bytes]]:
        """Yields batches of the requests that have arrived, until the stream ends.

        Waits for each batch, which has 1 to 8 requests, and takes them out of the queue. Raises a
        Refusal where the client has sent nothing for too long. Where `end` was called, raises the
        Refusal that `end` was given, once all requests in the queue were yielded.

        patience: called before each batch; returns how long the client may send nothing then.
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
        """Makes `batches` raise `refusal`, once it has yielded all requests in the queue.

        Returns at once. Any thread may call this; of several calls the first one counts.
        """
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
            pass  # the client is gone: its arrived requests are still taken, then the stream ends
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            self._on_over(self)
