"""The Push service of gRPC: which streams of records are accepted, and when they are answered.

A stream is one Push call, which sends the records of one rank of one run:

Hello ─▶ Resume
each batch of requests ─▶ the answers that they ask for, then Ack, after the batch is written
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from anchor_server.counters import CollectorCounters
from anchor_server.fragment_memory import FragmentMemory
from anchor_server.gate import Gate
from anchor_server.inbox import Inbox
from anchor_server.limits import Meter, SharedRate
from anchor_server.rank_holders import RankHolders
from anchor_server.refusal_counts import Caller, RefusalCounts
from anchor_server.refusals import Refusal, refusal_of
from anchor_server.stalled_clients import AnswerWatch
from anchor_server.stream import RankStream
from anchor_server.tokens import Grant, Right
from anchorlib.errors import AnchorError
from anchorlib.names import check_run_name
from anchorlib.store import memory_here
from anchorlib.wire import (
    AHEAD_BYTES,
    AHEAD_SHARE,
    DURABILITY_POWER,
    DURABILITY_PROCESS,
    FRAME_BYTES,
    HELLO_SECONDS,
    Ack,
    Decoder,
    FailureKind,
    FrameError,
    GarbledError,
    Hello,
    ParsedFrame,
    PushReply,
    PushRequest,
    Resume,
    check_seal,
    host_of,
    parse_request,
    why_not_taken,
)

__all__ = ["PushService", "StreamLimits"]

_STOPPING = "the collector is stopping"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits that a collector sets to its streams (Push calls).

    streams: how many streams may be open at once; each holds a thread.
    idle_seconds: how many seconds a client may send nothing, or leave an answer unread.
    record_bytes: the most bytes of values in one record.
    rate: the most bytes a second that all streams together send; None is no limit.
    """

    streams: int
    idle_seconds: float
    record_bytes: int
    rate: int | None = None

    @property
    def ahead(self) -> int:
        """The most bytes of requests that are read ahead for one stream, before they are served.

        It is a share of the machine's memory divided by `streams`, within two limits.
        """
        return max(min(int(memory_here() * AHEAD_SHARE) // self.streams, AHEAD_BYTES), FRAME_BYTES)


@dataclass(slots=True)
class StreamClient:
    """The client of one stream (Push call).

    context: gRPC's object for the call. caller: who the client is, for the log.
    hello: the client's first message; None until that has arrived.
    """

    context: grpc.ServicerContext
    caller: Caller
    hello: Hello | None = None


class PushService:
    """Answers Push calls (streams): admits them, stores their records and acknowledges these.

    fsync: what acknowledgements say: whether acknowledged records survive power loss.
    """

    def __init__(  # the parts that it connects
        self,
        ranks: RankHolders,
        gate: Gate,
        tally: CollectorCounters,
        refusal_counts: RefusalCounts,
        limits: StreamLimits,
        *,
        fsync: bool,
    ) -> None:
        self._gate = gate
        self._meter = Meter()
        self._shares = SharedRate(limits.rate)
        self._ranks = ranks
        self._tally = tally
        self._refusal_counts = refusal_counts
        self._room = FragmentMemory()
        self._limits = limits
        self._watch = AnswerWatch(limits.idle_seconds)
        self._ahead = limits.ahead
        self._durability = DURABILITY_POWER if fsync else DURABILITY_PROCESS
        self._changed = threading.Condition()
        self._clients: dict[Inbox, StreamClient] = {}
        self._stopping = False

    def push(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[PushReply]:
        """Serves one Push call, which sends the records of one rank of one run; yields the replies.

        An error ends the call with the refusal that fits the error.

        requests: the unparsed messages of the client.
        """
        caller = Caller(context.peer(), identity=self._gate.name(context))
        client = StreamClient(context, caller)
        try:
            inbox = self._admit(requests, client)
        except Refusal as refusal:
            self._refusal_counts.refuse(context, refusal, caller)
        try:
            with closing(self._serve(inbox, client)) as replies:
                for reply in replies:
                    with self._watch.answering(context.cancel):
                        yield reply
        except Exception as error:  # noqa: BLE001  # a bad client must not harm the others
            self._refusal_counts.refuse(context, error, caller)
        finally:
            inbox.end(Refusal(FailureKind.REPLACED, "the stream is over"))

    def stop(self) -> None:
        """Makes new Push calls be refused, and open calls end; returns at once.

        Each open call ends once the requests that have arrived are written.
        """
        with self._changed:
            self._stopping = True
            for inbox in self._clients:
                inbox.end(Refusal(FailureKind.STOPPING, _STOPPING))

    def look_again(self) -> None:
        """Makes the streams (Push calls) of clients end that have lost their right to write.

        The collector calls this when the access file has changed.
        """
        with self._changed:
            clients = list(self._clients.items())
        for inbox, client in clients:
            try:
                self._grant(client)
            except (Refusal, AnchorError) as error:
                inbox.end(refusal_of(error))

    def _grant(self, client: StreamClient) -> Grant:
        """Returns the rights that the client of a stream has now.

        Raises a Refusal where the client's token is unknown. Once the client's first message,
        Hello, has named a run, also raises a Refusal where the token may not write to that run, and
        StoreError where the note of who made the run is damaged.
        """
        hello = client.hello
        if hello is None:
            return self._gate.grant(client.context)
        grant = self._gate.check(client.context, Right.WRITE, hello.run)
        self._ranks.check_author(grant, hello)
        return grant

    def close(self) -> None:
        """Stops the thread that looks for unread answers, and waits for its end.

        The collector calls this when no stream is left.
        """
        self._watch.stop()

    def wait_idle(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until no stream is open; returns whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._clients, timeout)

    def _admit(self, requests: Iterator[bytes], client: StreamClient) -> Inbox:
        most = self._gate.grant(client.context).limits.streams
        name = client.caller.identity
        with self._changed:
            if self._stopping:
                raise Refusal(FailureKind.STOPPING, _STOPPING)
            if most is not None and self._open_of(name) >= most:
                raise Refusal(
                    FailureKind.STREAMS,
                    f"token '{name}' has {most} streams open, which is its limit (max_streams)",
                )
            if len(self._clients) >= self._limits.streams:
                raise Refusal(
                    FailureKind.STREAMS,
                    f"{self._limits.streams} streams are open, which is all this collector takes",
                )
            inbox = Inbox(requests, on_over=self._over, ahead=self._ahead)
            self._clients[inbox] = client
            self._tally.streams = len(self._clients)
            return inbox

    def _open_of(self, name: str) -> int:
        return sum(client.caller.identity == name for client in self._clients.values())

    def _over(self, inbox: Inbox) -> None:
        with self._changed:
            self._clients.pop(inbox, None)
            self._tally.streams = len(self._clients)
            self._changed.notify_all()

    def _serve(self, inbox: Inbox, client: StreamClient) -> Generator[PushReply]:
        caller = client.caller
        message = inbox.first(HELLO_SECONDS)
        if message is None:
            return
        try:
            hello = _hello(message)
        except GarbledError:
            self._tally.damage()
            raise
        caller.run, caller.rank = check_run_name(hello.run), hello.rank
        client.hello = hello
        grant = self._grant(client)
        self._check_rates(grant)
        with self._ranks.hold(hello, caller, grant, inbox.end) as held:
            writer = held.writer
            host = host_of(hello.writer) or caller.machine
            with self._tally.roster.seat(hello.run, hello.rank, host, writer.committed) as seat:
                resume = Resume(
                    committed=writer.committed,
                    attempt=writer.attempt,
                    asks_backlog=True,
                    first=writer.first,
                )
                yield PushReply(resume=resume)
                decoder = Decoder(record_bytes=self._limits.record_bytes)
                stream = RankStream(held, decoder, self._room, self._tally, seat)
                try:
                    yield from self._answers(inbox, stream, client)
                finally:
                    stream.leave()

    def _check_rates(self, grant: Grant) -> None:
        self._meter.check(_all_of(grant), grant.limits.rate)
        self._shares.check(grant.name)

    def _spend(self, grant: Grant, nbytes: int) -> None:
        """Counts received bytes for the rate limits of the token and of the whole collector.

        Raises a Refusal where the token's streams sent more than the token's rate allows. Also
        raises a Refusal where all streams together sent more than the collector's rate allows, and
        this token's streams sent more than the token's share of that rate.

        grant: the token with its limits.
        """
        try:
            self._meter.spend(_all_of(grant), grant.limits.rate, nbytes)
        finally:
            self._shares.spend(grant.name, nbytes)

    def _answers(
        self, inbox: Inbox, stream: RankStream, client: StreamClient
    ) -> Iterator[PushReply]:
        stored, caller = stream.committed, client.caller
        for batch in inbox.batches(lambda: stream.patience(self._limits.idle_seconds)):
            yield from stream.replies(batch)
            if stream.closed:
                return
            committed = stream.committed
            if committed > stored:
                stored = committed
                self._refusal_counts.passed(caller)
            ack = Ack(committed=committed, frames=stream.frames, durability=self._durability)
            yield PushReply(ack=ack)
            self._spend(self._gate.grant(client.context), sum(map(len, batch)))


def _all_of(grant: Grant) -> str:
    return f"streams of token '{grant.name}'"


def _hello(message: bytes) -> Hello:
    _check_version(message)
    request = parse_request(message)
    if isinstance(request, ParsedFrame) or request.WhichOneof("message") != "hello":
        raise FrameError("a stream begins with Hello")
    return request.hello


def _check_version(message: bytes) -> None:
    """Raises a Refusal where a Hello is of a protocol version that this collector does not speak.

    The check comes before the message's checksum is verified: other versions compute the checksum
    in another way or not at all, and their clients are to read "wrong version", not "damaged
    message". A message that is no Hello, or is damaged, passes.
    """
    try:
        request = PushRequest.FromString(message)
    except DecodeError:
        return
    why = why_not_taken(request.hello.protocol)
    if request.HasField("hello") and why and (_fits(message) or not request.check):
        raise Refusal(FailureKind.PROTOCOL, why)


def _fits(message: bytes) -> bool:
    try:
        check_seal(message)
    except GarbledError:
        return False
    return True
