"""One stream to a collector: carries what an outbox has to say, and brings it the answers."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anchorlib.wire.limits import ANSWER_SECONDS
from anchorlib.wire.loading import grpc
from anchorlib.wire.malformed import FrameError
from anchorlib.wire.outbox import Outbox
from anchorlib.wire.sealing import sealed
from anchorlib.wire.services import parse_reply, push_call
from anchorlib.wire.v1.collector_pb2 import Hello, PushReply, PushRequest

if TYPE_CHECKING:
    from anchorlib.wire.credentials import Metadata

__all__ = ["PushStream", "host_of", "writer_name"]

_WRITER = re.compile(r"process [0-9]+ on (\S{1,255})")
_ENDS_WITHIN = 5.0  # seconds that gRPC may take to let go of an ended stream's requests


class PushStream:
    """Sends from `outbox`, which `changed` guards, until the collector has closed the run.

    `changed` is notified after every answer; notify it after every change to the outbox.

    patience: seconds that an answer may take.

    silent: whether the stream was ended because an answer that was due did not come.
    answered_at: when the last answer came, by the monotonic clock; None before the first.
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
        """Returns when the collector has closed the run, or ended the stream without an error.

        Raises grpc.RpcError where the stream breaks or is refused, DamagedError for an answer that
        is not the one that was sent, FrameError for answers that cannot be.
        """
        with self._changed:
            if self._over:
                return
            self._outbox.restart()
            # Nothing here may hold the requests: they end once gRPC lets go of them.
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
        """The reply. Raises FrameError where a collector that knows no parts is to take one."""
        knows = not reply.HasField("resume") or reply.resume.HasField("first")
        if self._hello.HasField("part") and not knows:
            raise FrameError(
                "it is of an older version, which cannot share a run with other collectors; "
                "install the same version of anchorlib on all of them"
            )
        return reply

    def cancel(self) -> None:
        """End the stream now, from any thread."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            call = self._call
        self._gone.set()
        if call is not None:
            call.cancel()

    def _watch(self) -> None:
        """Ends a stream that is stuck although the line is up.

        A bit that flipped in the line's own frames can make either end wait for ever.
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
        """Runs on a thread of gRPC's, which has to be let go when the stream is over."""
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
    """How a collector names this process to others."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def host_of(writer: str) -> str:
    """The machine in such a name, "" where it is another kind of name."""
    found = _WRITER.fullmatch(writer)
    return "" if found is None else found[1]
