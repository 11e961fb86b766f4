"""The remote sink: records travel to a collector.

    put ─▶ outbox (memory, bounded) ─▶ sender thread ══gRPC══▶ collector

What was put stays in memory until the collector has it, through any number of broken connections
and collectors that were killed and started again. Nothing here raises into training, and nothing
waits for the network but `flush`, `close`, and `put` under on_full="block".
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc

from anchorlib.errors import AnchorError, CollectorError, FlushTimeoutError
from anchorlib.record import Edges, Flag, Gap, Record
from anchorlib.sinks.queue import OnFull
from anchorlib.wire import (
    FRAME_BYTES,
    PROTOCOL,
    Address,
    Credentials,
    Failure,
    Hello,
    Outbox,
    PushStream,
    failure,
    frame_weight,
    open_channel,
    parse_address,
    writer_name,
)

__all__ = ["RemoteSink"]

_log = logging.getLogger("anchorlib")

_FIRST_BACKOFF: Final = 0.1  # seconds; doubled with each failure
_LAST_BACKOFF: Final = 5.0
_CLOSING_BACKOFF: Final = 0.5  # a close has little time
_HOPELESS: Final = 10  # refusals of the same record, one after another
_JOIN_SECONDS: Final = 10.0
_VALUES_SHARE: Final = 7 / 8  # of the memory; the rest is kept for summaries

# Reasons of gaps.
_VALUES_DROPPED: Final = "line full: values dropped"
_DROPPED: Final = "line full"
_REFUSED: Final = "refused by the collector"
_CLOSED: Final = "closed"


class RemoteSink:
    """Sends one rank of one run to the collector at `address`.

    header: the run header, as JSON can hold it.
    resume, overwrite: what to do where the rank exists already.
    on_full: when what waits reaches `limit_bytes`. "drop" leaves values out and keeps their
        summaries, and counts what does not even leave room for those; otherwise `put` waits.
    credentials: None takes the environment's.
    max_bytes: of this rank on the collector's disk.

    Raises OptionError for an address or a certificate that cannot be; nothing later.
    """

    def __init__(  # noqa: PLR0913  # each is a choice of its own, by keyword
        self,
        address: Address | str,
        run: str,
        rank: int,
        header: Mapping[str, Any] | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        on_full: OnFull = "drop",
        limit_bytes: int = 256 << 20,
        credentials: Credentials | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.address = parse_address(address) if isinstance(address, str) else address
        self.retries = 0
        self.dropped = 0
        self.dropped_bytes = 0
        self._credentials = credentials or Credentials.from_environment()
        self._on_full = on_full
        self._limit = limit_bytes
        self._hello = Hello(
            protocol=PROTOCOL,
            run=run,
            rank=rank,
            writer_id=os.urandom(16),
            resume=resume,
            overwrite=overwrite,
            header=json.dumps(dict(header or {}), default=str),
            max_bytes=max_bytes or 0,
            writer=writer_name(),
        )
        self._changed = threading.Condition()
        self._outbox = Outbox()
        self._gaps: dict[tuple[str, str, str, str], Gap] = {}
        self._trouble = ""  # the last failure, in a sentence
        self._refusal = ""  # the one that will not go away
        self._closing = False
        self._finished = False
        self._process = os.getpid()
        self._stream: PushStream | None = None
        self._thread = threading.Thread(target=self._run, name="anchorlib-sender", daemon=True)
        self._thread.start()

    @property
    def own_gaps(self) -> int:
        """Series that records were left out of here, each reason counted for itself."""
        return len(self._gaps)

    @property
    def waiting(self) -> int:
        """Records that the collector has not acknowledged."""
        return self._outbox.waiting

    # -- the drain thread's side

    def put(self, records: Sequence[Record]) -> None:
        """Take a batch over; its arrays are copied."""
        if self._forked:
            return
        for batch in _batches(records):
            with self._changed:
                admitted = self._admit(batch)
            # Copying is done without the lock: frames are sent while the next ones are made.
            for frame in self._outbox.encode(admitted):
                with self._changed:
                    self._outbox.append(frame)
                    self._changed.notify_all()

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Take cumulative statements over."""
        if self._forked:
            return
        with self._changed:
            self._outbox.gap(gaps)
            self._changed.notify_all()

    def edges(self, edges: Sequence[Edges]) -> None:
        """Take lineage over."""
        if self._forked:
            return
        with self._changed:
            self._outbox.edges(edges)
            self._changed.notify_all()

    def flush(self, timeout: float | None) -> None:
        """Return when the collector has published all that was put.

        Raises FlushTimeoutError after `timeout` seconds, CollectorError where the collector
        refused this run.
        """
        if self._forked:
            return
        with self._changed:
            wanted = self._outbox.flush()
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._outbox.flushed >= wanted or self._finished, timeout
            )
            if self._refusal:
                raise CollectorError(self._refusal)
            if not done:
                raise FlushTimeoutError(
                    f"{self._outbox.waiting} records are not at {self.address} after {timeout:g} s"
                    f"{f': {self._trouble}' if self._trouble else '; give it more time'}"
                )

    def close(self, timeout: float) -> int:
        """Deliver what waits, close the run for this rank, and say how many records are not there.

        Those that `dropped` counts are not counted again.
        """
        if self._forked:
            return 0
        with self._changed:
            self._closing = True
            self._outbox.close()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outbox.closed or self._finished, timeout)
            self._finished = True
            self._changed.notify_all()
            stream = self._stream
        if stream is not None and not self._outbox.closed:
            stream.cancel()
        self._thread.join(_JOIN_SECONDS)
        return self._outbox.waiting

    @property
    def _forked(self) -> bool:
        # A forked child must never touch gRPC: it would hang there (DataLoader's workers).
        return os.getpid() != self._process

    def _admit(self, batch: Sequence[Record]) -> Sequence[Record]:
        """What of a batch is sent; the rest is counted."""
        weight = sum(map(frame_weight, batch))
        if self._on_full != "drop":
            self._changed.wait_for(lambda: self._has_room(weight) or self._deaf)
        if self._deaf:
            self._count(batch, _REFUSED if self._refusal else _CLOSED)
            return ()
        if self._on_full != "drop" or self._has_room(weight, _VALUES_SHARE):
            return batch
        return self._summaries(batch)

    def _summaries(self, batch: Sequence[Record]) -> Sequence[Record]:
        """The line is full: leave the values out, or everything."""
        bare = [
            record
            if record.raw is None
            else replace(record, raw=None, flags=record.flags | Flag.VALUE_DROPPED)
            for record in batch
        ]
        if not self._has_room(sum(map(frame_weight, bare))):
            self._count(batch, _DROPPED)
            return ()
        self._count([record for record in batch if record.raw is not None], _VALUES_DROPPED)
        return bare

    def _has_room(self, weight: int, share: float = 1.0) -> bool:
        # A record larger than the limit is taken alone, or it could never be sent.
        return not self._outbox.nbytes or self._outbox.nbytes + weight <= self._limit * share

    @property
    def _deaf(self) -> bool:
        return bool(self._refusal) or self._closing or self._finished

    def _count(self, batch: Sequence[Record], reason: str) -> None:
        """Count records in this sink's own gap statements."""
        self.dropped += len(batch)
        self.dropped_bytes += sum(record.nbytes for record in batch)
        for record in batch:
            key = (record.name, record.kind, record.mode, reason)
            step = record.coordinates.step
            old = self._gaps.get(key) or Gap(*key, 0, step, step)
            self._gaps[key] = replace(
                old,
                count=old.count + 1,
                first_step=min(old.first_step, step),
                last_step=max(old.last_step, step),
            )
            self._outbox.gap([self._gaps[key]])

    # -- the sender thread's side

    def _run(self) -> None:
        try:
            self._send()
        except Exception as fault:  # noqa: BLE001  # training goes on whatever happens here
            _log.exception("anchorlib: a defect in the sender")
            self._refuse(f"sending to {self.address} failed: {fault!r}")

    def _send(self) -> None:
        failures = stuck = 0
        warned = False
        mark = -1
        while not self._over:
            fault = self._connect()
            if fault is None:
                continue
            if self._outbox.resumed:  # it had answered before it failed
                failures, warned = 0, False
            moved, mark = self._outbox.committed != mark, self._outbox.committed
            failures += 1
            stuck = 0 if moved or fault.passing else stuck + 1
            self.retries += 1
            if fault.permanent or stuck >= _HOPELESS:
                self._refuse(fault.sentence)
                return
            if not warned and not self._over:
                warned = True
                self._warn(fault)
            self._pause(failures, fault)

    @property
    def _over(self) -> bool:
        return self._finished or self._outbox.closed

    def _connect(self) -> Failure | None:
        """One stream, until it ends; what went wrong with it, None where nothing did."""
        try:
            channel = open_channel(self.address, self._credentials)
        except AnchorError as error:
            return Failure(str(error), permanent=True)
        try:
            stream = PushStream(channel, self._hello, self._outbox, self._changed)
            with self._changed:
                if self._finished:
                    return None
                self._stream = stream
            stream.run(self._credentials.metadata)
        except grpc.RpcError as error:
            return failure(self.address, error)
        except AnchorError as error:
            sentence = f"the collector at {self.address} cannot go on: {error}"
            return Failure(sentence, permanent=True)
        finally:
            channel.close()
        return None if self._over else Failure(f"{self.address} ended the stream", passing=True)

    def _refuse(self, sentence: str) -> None:
        with self._changed:
            self._refusal = self._trouble = sentence
            self._finished = True
            self._outbox.drop()
            self._changed.notify_all()
        _log.warning("anchorlib: %s; nothing is recorded from here on, but counted", sentence)

    def _warn(self, fault: Failure) -> None:
        _log.warning(
            "anchorlib: %s; records wait in memory (%d MiB at most) and are sent when it answers",
            fault.sentence,
            self._limit >> 20,
        )

    def _pause(self, failures: int, fault: Failure) -> None:
        """Waits before the next try: a random time, so that many trainers do not come at once."""
        with self._changed:
            self._trouble = fault.sentence
            closing = self._closing
            longest = _CLOSING_BACKOFF if closing else _LAST_BACKOFF
            seconds = random.uniform(0, min(longest, _FIRST_BACKOFF * 2.0**failures))
            self._changed.wait_for(lambda: self._finished or self._closing != closing, seconds)


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Cuts records into batches of about a frame, so that a full line is noticed in time."""
    start = size = 0
    for index, record in enumerate(records):
        if size >= FRAME_BYTES:
            yield records[start:index]
            start, size = index, 0
        size += frame_weight(record)
    if start < len(records):
        yield records[start:]
