"""Push spoken by hand, one message at a time, and what a store then holds."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from anchorlib.block import block_of
from anchorlib.fingerprints import RECORD, fingerprint_of, tensor_code
from anchorlib.record import Coordinates, Record
from anchorlib.store import LocalLocation, RankReader
from anchorlib.summary import digest, summarise
from anchorlib.wire import (
    PROTOCOL,
    Confirm,
    Confirmed,
    Credentials,
    Encoder,
    FailureKind,
    Hello,
    PushReply,
    PushRequest,
    kind_of,
    open_channel,
    parse_address,
    sealed,
)
from anchorlib.wire.connection.services import parse_reply, push_call

WRITER = b"w" * 16


def record(step: int, size: int = 4, name: str = "fc1") -> Record:
    """A float32 gradient that no other step has."""
    raw = np.arange(step, step + size, dtype="<f4")
    summary = summarise(raw, "float32")
    return Record(
        name, "grad", "all", Coordinates(step), step, step, "float32", (size,), raw, summary
    )


def stored(store: Path, run: str = "run1", rank: int = 0) -> list[tuple[str, int, bytes]]:
    """Name, step and raw bytes of each record in the order of writing; each digest is checked."""
    reader = RankReader(LocalLocation(store / f"{run}.zarr"), rank)
    series = [reader.catalogue.series[number] for number in reader.series_ids]
    steps = reader.column("step")
    found = []
    for row in range(reader.committed):
        raw = reader.raw(row)
        high, low = (int(reader.column(f"digest_{part}")[row]) for part in ("high", "low"))
        assert digest(raw) == high.to_bytes(8, "big") + low.to_bytes(8, "big")
        found.append((series[row].name, int(steps[row]), raw.tobytes()))
    return found


def expected(records: Sequence[Record]) -> list[tuple[str, int, bytes]]:
    """What `stored` has to say of these."""
    return [(r.name, r.coordinates.step, r.raw.tobytes()) for r in records if r.raw is not None]


def fingerprint(records: Sequence[Record]) -> bytes:
    """What a store that holds these has to say of them."""
    rows = np.empty(len(records), RECORD)
    for at, one in enumerate(records):
        where, summary = one.coordinates, one.summary
        assert summary is not None
        series = (one.name, one.kind, one.mode)
        rows[at] = (
            tensor_code(series, where.phase, one.dtype, one.shape),
            *(where.step, where.pass_index, where.call, one.order, one.time_ns, one.count),
            *np.frombuffer(summary.digest, ">u8"),
        )
    return fingerprint_of(rows)


def answer(asked: Confirm, records: Sequence[Record]) -> PushReply:
    """What a collector that holds these records answers to a writer that asks."""
    return PushReply(confirmed=Confirmed(fingerprint=fingerprint(records[asked.first : asked.end])))


class Pusher:
    """One stream; leaving the context half-closes it."""

    def __init__(
        self, address: str, *, token: str | None = None, timeout: float | None = 20, **hello: Any
    ) -> None:
        said = {"protocol": PROTOCOL, "run": "run1", "rank": 0, "writer_id": WRITER} | hello
        self.encoder = Encoder()
        self._defined = 0
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        credentials = Credentials(token=token)
        self._channel = open_channel(parse_address(f"grpc://{address}"), credentials)
        self._replies = push_call(self._channel)(
            self._sent(), metadata=credentials.metadata, timeout=timeout
        )
        self.send(sealed(PushRequest(hello=Hello(**said))))

    def _sent(self) -> Iterator[bytes]:
        while (message := self._requests.get()) is not None:
            yield message

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._requests.put(message)

    def send_end(self) -> None:
        """Say that nothing more comes."""
        self._requests.put(None)

    def push(self, *records: Record) -> None:
        """Frames, after the definitions they need."""
        for frame in self.encoder.encode(block_of(records)):
            self.send(*self.encoder.definitions[self._defined : frame.definitions], frame.message)
            self._defined = frame.definitions

    def reply(self) -> PushReply:
        """The next answer; grpc.RpcError where it is a refusal."""
        return parse_reply(next(self._replies))

    def acked(self, committed: int) -> None:
        """Reads acknowledgements until one says so many."""
        while self.reply().ack.committed != committed:
            pass

    def refusal(self) -> tuple[grpc.StatusCode, str]:
        """How the collector ended the stream; answers before that are skipped."""
        try:
            for _ in self._replies:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    def kind(self) -> FailureKind | None:
        """As what kind of failure the collector ended the stream; None where it was none."""
        try:
            for _ in self._replies:
                pass
        except grpc.RpcError as error:
            return kind_of(error)
        return None

    def cut(self) -> None:
        """End the stream as a client that dies does."""
        self._replies.cancel()
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._requests.put(None)
        self._channel.close()
