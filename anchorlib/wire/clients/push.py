"""One gRPC stream to a collector: sends an outbox's messages, and gives the outbox the replies.

An outbox is the queue of a rank's messages, which stay in it until the collector has them.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anchorlib.wire.connection import grpc, parse_reply, push_call
from anchorlib.wire.limits import ANSWER_SECONDS
from anchorlib.wire.messages import FrameError, sealed
from anchorlib.wire.outbox import Outbox
from anchorlib.wire.v1.collector_pb2 import Hello, PushReply, PushRequest

if TYPE_CHECKING:
    from anchorlib.wire.credentials import Metadata

__all__ = ["PushStream", "host_of", "writer_name"]

_WRITER = re.compile(r"process [0-9]+ on (\S{1,255})")
_ENDS_WITHIN = 5.0  # seconds that gRPC has to release the request iterator of an ended stream


class PushStream:
    """One stream, which sends the messages of `outbox` until the collector has closed the run.

    hello: the message that opens the stream; it says who writes which rank of which run.
    changed: the condition variable whose lock guards the outbox. The stream notifies it after every
        reply; whoever changes the outbox has to notify it too.
    patience: how many seconds a reply may take before the stream is ended; ANSWER_SECONDS at most.

    Two attributes may be read at any time.

    silent: whether the stream was ended because a reply that was due did not come.
    answered_at: when the last reply came, by the monotonic clock; None before the first.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        hello: Hello,
        outbox: Outbox,
        changed: threading.Condition,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        self._channel = channel
        self._hello = hello
        self._outbox = outbox
        self._changed = changed
        self._patience = min(patience, ANSWER_SECONDS)
        self._over = False
        self._heard = 0.0
        self.answered_at: float | None = None
        self.silent = False
        self._gone = threading.Event()
        self._ended = threading.Event()
        self._call: grpc.Call | None = None

    def run(self, metadata: Metadata = ()) -> None:
        """Send and receive until the collector has closed the run or ended the stream.

        Returns at once if `cancel` was called before.
        metadata: what `Credentials.metadata` returns. Raises grpc.RpcError if the stream breaks or
        is refused, GarbledError for a reply that does not fit its checksum, and the errors of
        `Outbox.take`.
        """
        with self._changed:
            if self._over:
                return
            self._outbox.restart()
            # No variable may refer to the request iterator: it ends when gRPC drops its reference.
            self._call = call = push_call(self._channel)(
                self._requests(self._greeting()), metadata=metadata
            )
        watch = threading.Thread(target=self._watch, name="anchorlib-watch", daemon=True)
        watch.start()
        try:
            for reply in call:
                with self._changed:
                    self._heard = self.answered_at = time.monotonic()
                    self._outbox.take(self._known(parse_reply(reply)))
                    self._changed.notify_all()
                self._outbox.tidy()
        finally:
            self.cancel()
            self._ended.wait(_ENDS_WITHIN)
            watch.join()

    def _known(self, reply: PushReply) -> PushReply:
        """Return `reply`; raise FrameError if the collector is too old to store a part of a rank.

        A rank that several collectors share has a part at each collector. Collectors of older
        versions know no parts: their message Resume lacks the field `first`.
        """
        knows = not reply.HasField("resume") or reply.resume.HasField("first")
        if self._hello.HasField("part") and not knows:
            raise FrameError(
                "it is of an older version, which cannot share a run with other collectors; "
                "install the same version of anchorlib on all of them"
            )
        return reply

    def cancel(self) -> None:
        """End the stream now; any thread may call this, and it does not wait for `run` to end."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            call = self._call
        self._gone.set()
        if call is not None:
            call.cancel()

    def _watch(self) -> None:
        """End the stream if a due reply does not come although the connection is up.

        This method runs on a thread of its own until `cancel` is called. It is needed because a
        flipped bit in an HTTP/2 frame can make either end wait for ever.
        """
        self._heard = time.monotonic()
        while not self._gone.wait(self._patience / 8):
            with self._changed:
                now = time.monotonic()
                if not self._outbox.owed:
                    self._heard = now
                self.silent = now - self._heard > self._patience
            if self.silent:
                self.cancel()

    def _greeting(self) -> bytes:
        hello = Hello()
        hello.CopyFrom(self._hello)
        hello.acknowledged = max(hello.acknowledged, self._outbox.committed)
        return sealed(PushRequest(hello=hello))

    def _requests(self, hello: bytes) -> Iterator[bytes]:
        """Yield the messages to send: `hello` first, then those of the outbox.

        gRPC runs this iterator on a thread of its own, which ends only when the iterator ends. The
        event `_ended` is set when the iterator ends.
        """
        try:
            yield hello
            while (message := self._next()) is not None:
                yield message
        finally:
            self._ended.set()

    def _next(self) -> bytes | None:
        with self._changed:
            while not (self._over or self._outbox.closed):
                message = self._outbox.next()
                if message is not None:
                    return message
                self._changed.wait()
            return None


def writer_name() -> str:
    """Return the name of this process, by which a collector tells others who writes a rank."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def host_of(writer: str) -> str:
    """Return the host name of the machine in a name that `writer_name` made; "" for other texts."""
    match = _WRITER.fullmatch(writer)
    return "" if match is None else match[1]
