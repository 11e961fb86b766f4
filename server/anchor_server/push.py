"""One stream of records: what it says, in which order, and what it is answered.

Hello ─▶ Resume
Define, Frame … ─▶ Ack       after the write, for all that arrived together
Gaps, Lineage
Flush ─▶ Flushed             after everything before it was published
Close ─▶ Closed              the rank is closed; the stream ends
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from anchor_server.inbox import Inbox
from anchor_server.ranks import Ranks, Tenancy
from anchor_server.refusals import Refusal, abort
from anchorlib.record import Record
from anchorlib.wire import (
    DURABILITY_POWER,
    DURABILITY_PROCESS,
    PROTOCOL,
    STOPPING,
    Ack,
    Closed,
    Decoder,
    Flushed,
    Framed,
    FrameError,
    Hello,
    PushReply,
    PushRequest,
    Resume,
    parse_request,
    read_gaps,
    read_lineage,
)

__all__ = ["PushService"]

_HELLO_SECONDS = 10.0  # a stream that says nothing for so long is not a writer's


class PushService:
    """Serves Push.

    max_streams: streams at once; each holds a thread.
    record_bytes: the most raw storage of one record.
    """

    def __init__(self, ranks: Ranks, *, max_streams: int, record_bytes: int, fsync: bool) -> None:
        self._ranks = ranks
        self._max_streams = max_streams
        self._record_bytes = record_bytes
        self._durability = DURABILITY_POWER if fsync else DURABILITY_PROCESS
        self._changed = threading.Condition()
        self._inboxes: set[Inbox] = set()
        self._stopping = False

    def push(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[PushReply]:
        """The handler: one call, one rank of one run."""
        try:
            inbox = self._admit(requests)
        except Refusal as refusal:
            abort(context, refusal)
        try:
            yield from self._serve(inbox, context.peer())
        except Exception as error:  # noqa: BLE001  # a bad client must not harm the others
            abort(context, error)
        finally:
            inbox.end(Refusal(grpc.StatusCode.CANCELLED, "the stream is over"))

    def stop(self) -> None:
        """Take no more streams, and end those there are once what has arrived is written."""
        with self._changed:
            self._stopping = True
            for inbox in self._inboxes:
                inbox.end(Refusal(grpc.StatusCode.UNAVAILABLE, STOPPING))

    def wait_idle(self, timeout: float) -> bool:
        """Whether within `timeout` seconds no stream is being read."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inboxes, timeout)

    def _admit(self, requests: Iterator[bytes]) -> Inbox:
        with self._changed:
            if self._stopping:
                raise Refusal(grpc.StatusCode.UNAVAILABLE, STOPPING)
            if len(self._inboxes) >= self._max_streams:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self._max_streams} streams are open, which is all this collector takes",
                )
            inbox = Inbox(requests, on_over=self._over)
            self._inboxes.add(inbox)
            return inbox

    def _over(self, inbox: Inbox) -> None:
        with self._changed:
            self._inboxes.discard(inbox)
            self._changed.notify_all()

    def _serve(self, inbox: Inbox, peer: str) -> Iterator[PushReply]:
        message = inbox.first(_HELLO_SECONDS)
        if message is None:
            return
        hello = _hello(message)
        with self._ranks.tenancy(hello, peer, inbox.end) as tenancy:
            writer = tenancy.writer
            told = Resume(committed=writer.committed, attempt=writer.attempt)
            yield PushReply(resume=told)
            stream = _Stream(tenancy, Decoder(hello.rank, record_bytes=self._record_bytes))
            for batch in inbox.batches():
                yield from stream.replies(batch)
                if tenancy.closed:
                    return
                yield PushReply(
                    ack=Ack(
                        committed=writer.committed,
                        frames=stream.frames,
                        durability=self._durability,
                    )
                )


class _Stream:
    """A stream that has said hello.

    frames: dealt with so far.
    """

    def __init__(self, tenancy: Tenancy, decoder: Decoder) -> None:
        self.frames = 0
        self._tenancy = tenancy
        self._writer = tenancy.writer
        self._decoder = decoder
        self._next = self._writer.committed
        self._records: list[Record] = []

    def replies(self, batch: list[bytes]) -> Iterator[PushReply]:
        """Deals with requests that arrived together; their records are written in one go."""
        for message in batch:
            request = parse_request(message)
            if isinstance(request, Framed):
                self._frame(request)
            else:
                yield from self._other(request)
        self._write()

    def _other(self, request: PushRequest) -> Iterator[PushReply]:
        said = request.WhichOneof("message")
        if said == "define":
            self._decoder.define(request.define)
        elif said == "gaps":
            self._write()
            self._writer.gap(read_gaps(request.gaps))
        elif said == "lineage":
            self._writer.edges(read_lineage(request.lineage))
        elif said == "flush":
            self._write()
            self._writer.publish()
            yield PushReply(flushed=Flushed(id=request.flush.id))
        elif said == "close":
            self._write()
            committed = self._writer.committed
            self._tenancy.close()
            yield PushReply(closed=Closed(committed=committed))
        else:
            raise FrameError(f"{said or 'nothing'} is not what a stream says here")

    def _frame(self, frame: Framed) -> None:
        self.frames += 1
        first = frame.head.first
        if first > self._next:
            raise Refusal(
                grpc.StatusCode.OUT_OF_RANGE,
                f"record {first} came where {self._next} was due",
            )
        records = self._decoder.decode(frame)
        self._records += records[self._next - first :]
        self._next = max(self._next, first + len(records))

    def _write(self) -> None:
        if self._records:
            records, self._records = self._records, []
            self._writer.write(records)


def _hello(message: bytes) -> Hello:
    request = parse_request(message)
    if isinstance(request, Framed) or request.WhichOneof("message") != "hello":
        raise FrameError("a stream begins with Hello")
    if request.hello.protocol != PROTOCOL:
        raise Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"this collector speaks version {PROTOCOL} of the protocol, the client "
            f"{request.hello.protocol}; install the same version of anchorlib on both sides",
        )
    return request.hello
