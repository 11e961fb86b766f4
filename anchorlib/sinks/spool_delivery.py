"""What a dead process left in its spool, brought to where it belongs.

spool ─▶ collector     as the writer that made it: what it has already is not sent again
      └▶ directory     by the store's own writer, the same way
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from anchorlib.errors import (
    CollectorError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)
from anchorlib.names import escape
from anchorlib.record import Gap
from anchorlib.sinks.sending import Sender
from anchorlib.sinks.spool import OwnedSpool
from anchorlib.sinks.spool_frames import SpoolFrames
from anchorlib.sinks.spool_place import SpoolLabel, spools_of
from anchorlib.store import RunReader, Writer, find_run
from anchorlib.wire import (
    Address,
    Credentials,
    Decoder,
    Encoded,
    Framed,
    FrameError,
    Hello,
    Outbox,
    PushReply,
    is_address,
    parse_address,
    parse_request,
    read_header,
    read_lineage,
)

__all__ = ["Delivered", "Delivery", "deliver", "left_spools"]


_log = logging.getLogger("anchorlib")

Progress = Callable[[int, int], None]


class PastAttempt(NamedTuple):
    """What a store has of one attempt at a rank; `records` of it."""

    writer_id: bytes
    records: int
    started_ns: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """What came of a delivery.

    records: in the spool that were good; those of them that were there `already` are counted too.
    lost: records that damage cost, as far as they can be counted.
    set_aside: damaged segments, which stay in the spool's directory.
    """

    run: str
    rank: int
    records: int
    already: int
    lost: int
    set_aside: int


class _Draining(Outbox):
    """Ends its stream, as if it had closed the run, once all there is was published."""

    def __init__(self, load: _Load) -> None:
        frames = load.frames
        super().__init__(frames=frames, definitions=frames.definitions, may_lag=True)
        self._load: _Load | None = load
        self.gap(load.notes.gaps)
        self.say_lineage(load.notes.lineage)
        self._last_flush = self.flush()
        self._close = load.notes.closed
        if self._close:
            self.close()

    def next(self) -> bytes | None:
        """The next message to send; what damage cost is stated when all else was read."""
        load = self._load
        if self.resumed and load is not None and load.frames.first() is None:
            self._load = None
            self.gap(load.damage())
        return super().next()

    def take(self, reply: PushReply) -> None:
        """What the collector said."""
        super().take(reply)
        if not self._close and self.flushed >= self._last_flush:
            self.closed = True


class Delivery:
    """One spool on its way to a collector.

    Raises StoreError for a spool in which nothing says whose it is, RunExistsError where a newer
    recording stands in its place.
    """

    def __init__(
        self,
        work: OwnedSpool,
        address: Address,
        credentials: Credentials,
        changed: threading.Condition,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._load = _Load(work, str(address), changed)
        hello = self._load.hello(_attempts(self._load.run, self._load.rank, str(address)))
        self.outbox = _Draining(self._load)
        self._changed = changed
        self.sender = Sender(address, hello, self.outbox, changed, credentials, on_trouble)

    @property
    def delivered(self) -> bool:
        """Whether all of it is there."""
        return self.outbox.closed

    def run(self) -> None:
        """Send until all of it is there, the collector refused, or `cancel`."""
        try:
            self.sender.run()
        finally:
            self._load.frames.close()

    def cancel(self) -> None:
        """Stop, from any thread; what is there stays there."""
        with self._changed:
            self.sender.finished = True
            self._changed.notify_all()
        self.sender.cancel()

    def finish(self) -> Delivered:
        """All is there: remove it here."""
        return self._load.finish()


class _Load:
    """A spool's content, ready to be sent to `to`."""

    def __init__(self, work: OwnedSpool, to: str, changed: threading.Condition) -> None:
        self._work = work
        self._segments = work.segments()
        self._holes = work.holes(to)
        self.notes = work.notes(self._segments)
        self.frames = SpoolFrames(self._segments, self._holes, changed, end=self.notes.end)
        if self.notes.hello is None and (work.label is None or self.notes.end):
            raise StoreError(
                f"nothing in the spool {escape(str(work.folder))} says which run it is of"
            )

    @property
    def run(self) -> str:
        """The run it is of."""
        return self._hello.run

    @property
    def rank(self) -> int:
        """The rank it is of."""
        return self._hello.rank

    @property
    def _hello(self) -> Hello:
        label = self._work.label
        if self.notes.hello is not None or label is None:
            return self.notes.hello or Hello()
        return Hello(run=label.run, rank=label.rank, writer_id=bytes.fromhex(label.writer_id))

    def hello(self, attempts: Sequence[PastAttempt]) -> Hello:
        """How to say who writes, where these attempts at the rank are already."""
        hello = Hello()
        hello.CopyFrom(self._hello)
        label = self._work.label
        found = _taken_up(hello.writer_id, attempts)
        if found is None:
            since = 0 if label is None else label.created_ns
            newest = max((one.started_ns for one in attempts), default=0)
            if hello.overwrite and newest > since:
                raise RunExistsError(
                    f"rank {hello.rank} of run {hello.run!r} was recorded anew since this spool "
                    "was left, which would be overwritten; deliver it to another store"
                )
            return hello
        hello.writer_id, self._holes.base = found
        hello.resume, hello.overwrite = True, False
        return hello

    def damage(self) -> list[Gap]:
        """The statement of what damage cost, once all was read; of which tensors is not known."""
        reached = self.frames.reached
        if self.notes.closed and reached < self.notes.end:
            self._holes.add(reached, self.notes.end)
        return self.frames.damage

    def finish(self) -> Delivered:
        """Everything is delivered: remove it."""
        already = (self.frames.already or 0) + self._holes.base
        records = self.frames.end + self._holes.base
        run, rank, lost = self.run, self.rank, self._holes.damage
        damaged = sum(segment.damaged for segment in self._segments.listed)
        damaged += self._segments.set_aside
        self.frames.close()
        self._work.finish(self._segments)
        return Delivered(run, rank, records, already, lost, damaged)


def left_spools(place: Path, hello: Hello, to: str) -> Iterator[OwnedSpool]:
    """Spools of earlier writers of this rank that go to the same store, now this process's own."""
    for folder in spools_of(place, hello.run, hello.rank):
        if folder.name.endswith(hello.writer_id.hex()):
            continue  # the caller's own
        try:
            work = OwnedSpool.take(folder)
        except (RunBusyError, StoreError):
            continue  # its process is alive, or it was delivered a moment ago
        if work.label is not None and work.label.to == to:
            yield work
        else:
            work.release()


def deliver(folder: Path, to: str, *, patience: float, progress: Progress) -> Delivered:
    """Bring the spool in `folder` to the store at `to`, and remove it.

    patience: seconds without any answer after which a collector counts as unreachable.
    progress: told from time to time how many records of how many are there.

    Raises RunBusyError where a live process owns the spool, CollectorError, StoreError,
    RunExistsError. What was delivered until then is not sent again the next time.

    Spools beside it that earlier attempts at the same rank left come first, so that attempts are
    in the order in which they were made.
    """
    for earlier in _earlier(folder):
        _log.warning("anchorlib: delivering %s first, which is older", escape(str(earlier)))
        deliver(earlier, to, patience=patience, progress=progress)
    work = OwnedSpool.take(folder)
    try:
        if is_address(to):
            return _to_collector(work, parse_address(to), patience, progress)
        return _to_directory(work, Path(to), progress)
    finally:
        work.release()


def _earlier(folder: Path) -> list[Path]:
    """The nearest older spool of the same rank for the same store, if there is one."""
    mine = SpoolLabel.read(folder)
    if mine is None:
        return []
    older = [
        path
        for path in spools_of(folder.absolute().parent, mine.run, mine.rank)
        if (label := SpoolLabel.read(path)) is not None
        and label.to == mine.to
        and label.created_ns < mine.created_ns
        and any(path.glob("*.seg"))
    ]
    return older[-1:]


def _to_collector(
    work: OwnedSpool, address: Address, patience: float, progress: Progress
) -> Delivered:
    changed = threading.Condition()
    delivery = Delivery(work, address, Credentials.from_environment(), changed, lambda _: None)
    sender = delivery.sender
    sender.closing = True  # someone waits for it
    thread = threading.Thread(target=delivery.run, name="anchorlib-push", daemon=True)
    thread.start()
    try:
        _watch(delivery, changed, patience, progress)
    finally:
        delivery.cancel()
        thread.join()
    if not delivery.delivered:
        raise CollectorError(sender.refusal or sender.trouble or f"{address} did not answer")
    return delivery.finish()


def _watch(
    delivery: Delivery, changed: threading.Condition, patience: float, progress: Progress
) -> None:
    """Until it is over, or nothing has moved for too long."""
    outbox, sender = delivery.outbox, delivery.sender
    moved, last = (-1, -1), time.monotonic()
    while True:
        with changed:
            now = (outbox.committed, outbox.flushed)
            if outbox.closed or sender.finished:
                return
            if now == moved:
                changed.wait(0.1)
        if now != moved:
            moved, last = now, time.monotonic()
            progress(outbox.committed, outbox.committed + outbox.waiting)
        elif time.monotonic() - last > patience:
            return


def _to_directory(work: OwnedSpool, store: Path, progress: Progress) -> Delivered:
    load = _Load(work, str(store.absolute()), threading.Condition())
    hello = load.hello(_attempts(load.run, load.rank, str(store)))
    writer = Writer.open(
        store,
        hello.run,
        hello.rank,
        resume=hello.resume,
        overwrite=hello.overwrite,
        header=_header(hello),
        writer_id=hello.writer_id,
        max_bytes=hello.max_bytes or None,
    )
    try:
        _write(load, writer, progress)
        writer.gap([*load.notes.gaps, *load.damage()])
        for message in load.notes.lineage:
            request = parse_request(message)
            if not isinstance(request, Framed):
                writer.edges(read_lineage(request.lineage))
                writer.header(read_header(request.lineage))
        if load.notes.closed:
            writer.close()
        else:
            writer.publish()
    finally:
        writer.abandon()
    if work.label is None or work.label.power:
        os.sync()  # the spool goes: what it held must not be in this machine's memory alone
    return load.finish()


def _write(load: _Load, writer: Writer, progress: Progress) -> None:
    frames, decoder = load.frames, Decoder()
    frames.rewind()
    frames.commit(writer.committed)
    frames.tidy()
    told = 0
    next_record = writer.committed
    while (frame := frames.first()) is not None:
        while told < frame.definitions:
            request = parse_request(frames.definitions[told])
            if isinstance(request, Framed):
                raise FrameError("a frame stands where definitions are")
            decoder.define(request.define)
            told += 1
        next_record = _write_frame(frame, next_record, decoder, writer)
        frames.advance()
        progress(writer.committed, max(frames.end, writer.committed))


def _write_frame(frame: Encoded, due: int, decoder: Decoder, writer: Writer) -> int:
    framed = parse_request(frame.message)
    if not isinstance(framed, Framed):
        raise FrameError("what was kept as a frame is none")
    block = decoder.block(framed)
    if block is None:  # more fragments of it are to come
        return due
    first = framed.head.first
    writer.write_block(block.after(due - first))
    return max(due, first + len(block))


def _attempts(run: str, rank: int, to: str) -> Sequence[PastAttempt]:
    """The attempts at this rank that the store has, each with where its rows begin."""
    try:
        found = find_run(run, to)
        reader = RunReader(found.location, found.name)
        reader.refresh()
        one = reader.rank(rank)
    except (RunNotFoundError, KeyError):
        return ()
    except StoreError:
        return ()  # what is damaged there, the writer will say
    attempts = one.catalogue.attempts
    ends = [*(attempt.first_row for attempt in attempts[1:]), one.committed]
    return [
        PastAttempt(attempt.writer_id, end - attempt.first_row, attempt.started_ns)
        for attempt, end in zip(attempts, ends, strict=True)
    ]


def _taken_up(writer_id: bytes, attempts: Sequence[PastAttempt]) -> tuple[bytes, int] | None:
    """As which writer to go on, and how many records earlier ones brought; None for the first.

    Where another attempt was made since, what is left comes as a new one: the next link of a chain
    that begins with the writer itself, so that a delivery that is cut short is taken up again.
    """
    records = {one.writer_id: one.records for one in attempts}
    if writer_id not in records:
        return None
    base = 0
    while writer_id in records and writer_id != attempts[-1].writer_id:
        base += records[writer_id]
        writer_id = xxhash.xxh3_128_digest(writer_id)
    return writer_id, base


def _header(hello: Hello) -> dict[str, object]:
    told = json.loads(hello.header or "{}")
    return dict(told) if isinstance(told, dict) else {}
