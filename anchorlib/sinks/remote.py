"""The remote sink: sends the records of a rank to a collector, which stores them.

    put ─▶ spool (disk, bounded) ─▶ sender thread ══gRPC══▶ collector

A spool is a folder of this machine where records wait until the collector has them. So records
survive broken connections, restarts of the collector, and the death of this process: then the next
process that resumes this rank, or `anchor push`, delivers them. Without a spool, or while its disk
is full, records wait in memory. No exception reaches training. Only `close` and the `wait` of a
flush wait for the network. `put` waits only where the spool or memory is full, and `on_full` is
"block" or "raise".
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from anchorlib.block import RowBlock
from anchorlib.errors import FlushTimeoutError
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.sinks.base import DONE, Flushing
from anchorlib.sinks.delivery_warnings import DeliveryWarnings, warn_no_spool
from anchorlib.sinks.line_room import LineRoom
from anchorlib.sinks.options import RunOptions
from anchorlib.spool import Earlier, Sender, WrittenSpool, make_spool
from anchorlib.wire import (
    FRAME_BYTES,
    PROTOCOL,
    Address,
    Credentials,
    EncodedFrame,
    Encoder,
    Hello,
    Outbox,
    Part,
    Route,
    frame_weights,
    parse_addresses,
    writer_name,
)

__all__ = ["RemoteSink"]

_JOIN_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 1.0  # that a close waits before it says so

# Reasons of gaps, beside those of a full line.
_REFUSED: Final = "refused by the collector"
_CLOSED: Final = "closed"


class RemoteSink:
    """Sends the records of one rank of one run to the collector at `address`.

    address: the address of one collector, or of several collectors in one URL. Of several, a hash
        of the rank chooses the first; while one collector stays away, the next gets the records.

    options: under durability="power", `put` returns only when the block is on the spool's disk.
    credentials: what the collector asks for; None takes the credentials in the environment.
    spool: the directory below which records wait on disk; None keeps them in memory.

    writer_id: the secret of an earlier sink whose records are continued, from record number `first`
        on; None begins anew.

    Construction raises OptionError for an invalid address, certificate or ANCHOR_SPOOL_LIMIT. Later
    failures are logged, and raised only by the `wait` of a flush. In a forked child the sink's
    methods do nothing.
    """

    def __init__(
        self,
        address: Address | str,
        options: RunOptions,
        *,
        credentials: Credentials | None = None,
        spool: Path | None = None,
        writer_id: bytes | None = None,
        first: int = 0,
    ) -> None:
        among = parse_addresses(address) if isinstance(address, str) else (address,)
        self._route = Route(among, options.run, options.rank)
        self._credentials = credentials or Credentials.from_environment()
        self._on_full = options.on_full
        self._hello = Hello(
            protocol=PROTOCOL,
            run=options.run,
            rank=options.rank,
            writer_id=writer_id or os.urandom(16),
            resume=options.resume,
            overwrite=options.overwrite,
            header=json.dumps(dict(options.header), default=str),
            max_bytes=options.max_bytes or 0,
            writer=writer_name(),
            part=Part(first=first, restart=options.restart) if self._route.is_spread else None,
        )
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._undelivered: int | None = None
        self._wanted = -1  # the number of the last flush that was asked for; -1 before the first
        self._revoked = False
        self._place = spool
        self._power = options.power
        self._spool = None if spool is None else self._make_spool(spool, options)
        self._outbox = self._make_outbox(first)
        self._room = LineRoom(self._outbox, self._spool, options.queue_bytes, self._state)
        self._warnings = DeliveryWarnings(
            options.run, self._route, self._spool, options.queue_bytes
        )
        shared = (self._changed, self._credentials, self._warnings.away)
        self._sender = Sender(self._route, self._hello, self._outbox, *shared)
        self._sender.on_move = self._moved
        self._earlier = Earlier(self._route, self._hello, self._sender, *shared)
        self._thread = threading.Thread(target=self._run, name="anchorlib-sender", daemon=True)
        self._thread.start()

    def _make_spool(self, place: Path, options: RunOptions) -> WrittenSpool | None:
        try:
            to, among = str(self.address), self._route.among
            return make_spool(place, self._hello, to, among=among, power=options.power)
        except OSError as fault:
            warn_no_spool(place, fault, options.queue_bytes)
            return None

    def _make_outbox(self, first: int) -> Outbox:
        encoder = Encoder(first=first)
        if self._spool is None:
            return Outbox(encoder)
        lineage: list[bytes] = []
        frames = self._spool.connect(encoder, lineage, self._changed)
        return Outbox(encoder, frames=frames, lineage=lineage)

    @property
    def address(self) -> Address:
        """The address of the collector that this rank's records are sent to at present."""
        return self._route.address

    @property
    def spool(self) -> Path | None:
        """The spool's folder, in which undelivered records wait; None if they wait in memory."""
        return None if self._spool is None else self._spool.folder

    @property
    def dropped(self) -> int:
        """How many records were lost, or kept without their values."""
        return self._room.dropped + (0 if self._spool is None else self._spool.frames.lost)

    @property
    def lost(self) -> int:
        """How many of the dropped records are lost: not even their summary is kept."""
        return self._room.lost + (0 if self._spool is None else self._spool.frames.lost)

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the values that the dropped records had."""
        return self._room.dropped_bytes

    @property
    def retries(self) -> int:
        """How often sending to a collector was tried again, after a failure."""
        return self._sender.retries

    @property
    def own_gaps(self) -> int:
        """How many gap statements this sink has made of records that it dropped itself.

        A gap statement counts those of one series that were dropped for one reason.
        """
        return len(self._room.gaps)

    @property
    def waiting(self) -> int:
        """How many records were `put` that the collector has not acknowledged yet."""
        return self._outbox.waiting

    # -- called by the drain's thread, which owns the sink

    def put(self, block: RowBlock) -> None:
        """Copy a block of records into the spool or memory; the sender thread sends them later.

        Where there is no room, this waits, or drops values or records, as `on_full` says.
        """
        if self._forked:
            return
        for batch in _batches(block):
            with self._changed:
                admitted = self._admit(batch)
            # Values are copied without the lock, so that frames are sent while others are made.
            for frame, following in pairwise([*self._outbox.encode(admitted), None]):
                if frame is not None:
                    self._keep(frame, more=following is not None and following.end == frame.end)
        if self._spool is not None:
            if self._room.gaps:
                self._spool.tell()
            self._spool.settle()
        if self._power and self._outbox.may_lose_power:
            self._power = False  # the warning comes once
            self._warnings.may_lose_power()

    def _keep(self, frame: EncodedFrame, *, more: bool) -> None:
        if self._spool is None:
            frame = frame.joined()
        else:
            self._spool.frames.store(frame, more=more)
        with self._changed:
            self._outbox.append(frame)
            self._changed.notify_all()

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Queue gaps (what was not recorded, and why) to be sent.

        A gap replaces the last gap of the same series and reason, as its count is a total.
        """
        if self._forked:
            return
        with self._changed:
            self._state(gaps)
            self._changed.notify_all()

    def _state(self, gaps: Sequence[Gap]) -> None:
        self._outbox.gap(gaps)
        if self._spool is not None:
            self._spool.writer.gap(gaps)

    def edges(self, edges: Sequence[Edges]) -> None:
        """Queue lineage to be sent: which tensors and operations each value was computed from."""
        if self._forked:
            return
        with self._changed:
            self._outbox.edges(edges)
            self._changed.notify_all()

    def header(self, entries: Mapping[str, Any]) -> None:
        """Queue entries of the run header to be sent."""
        if self._forked:
            return
        with self._changed:
            self._outbox.header(entries)
            self._changed.notify_all()

    def operations(self, entries: Sequence[Entry]) -> None:
        """Queue entries of the log of traced operations to be sent."""
        if self._forked:
            return
        with self._changed:
            self._outbox.operations(entries)
            self._changed.notify_all()

    def flush(self) -> Flushing:
        """Ask the collector to make all records that were put so far visible to any zarr reader.

        Returns at once. The result's `wait` blocks until this is done; `wait` raises CollectorError
        if the collector has refused this run.
        """
        if self._forked:
            return DONE
        with self._changed:
            self._wanted = self._outbox.flush()
            self._changed.notify_all()
        return _Published(self._await_published, self._wanted)

    def _await_published(self, wanted: int, timeout: float | None) -> None:
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._outbox.flushed >= wanted or self._sender.finished, timeout
            )
            if self._sender.refused is not None:
                raise self._sender.refused.error()
            if not done:
                trouble = self._sender.trouble
                raise FlushTimeoutError(
                    f"{self._outbox.waiting} records are not at {self.address} after {timeout:g} s"
                    f"{f': {trouble}' if trouble else '; call flush with a longer timeout'}"
                )

    def revoke(self) -> None:
        """End a `put` that waits for room, and count the records that it has not stored as lost.

        The records of later calls of `put` are counted as lost too.
        """
        with self._changed:
            self._revoked = self._sender.closing = True
            self._changed.notify_all()

    def close(self, timeout: float) -> int:
        """Deliver waiting records, close the run for this rank, return how many records this loses.

        Records that the collector lacks after `timeout` seconds stay in the spool and are not lost;
        a warning says how to deliver them. Without a spool they are lost. Records that `dropped`
        counts are not counted again. The run is left open if `revoke` was called and the collector
        has published all records. A second call only returns the number again.
        """
        if self._forked:
            return 0
        if self._undelivered is None:
            self._drain(timeout)
            self._undelivered = self._leave()
        return self._undelivered

    def _drain(self, timeout: float) -> None:
        def over() -> bool:
            return self._outbox.closed or self._sender.finished

        with self._changed:
            self._sender.closing = True
            self._earlier.hurry()
            # A revoked run whose records are all delivered is left open.
            if not (self._revoked and self._is_delivered):
                self._outbox.close()
            self._changed.notify_all()
            silent = min(timeout, _SILENT_SECONDS)
            if not self._changed.wait_for(over, silent) and timeout > silent:
                self._warnings.closing(self._outbox.waiting, timeout)
                self._changed.wait_for(over, timeout - silent)
            self._sender.finished = True
            self._changed.notify_all()
        if not self._outbox.closed:
            self._sender.cancel()
        self._earlier.cancel()
        self._thread.join(_JOIN_SECONDS)

    def _leave(self) -> int:
        """Remove the spool, or close it with its undelivered records for a later delivery.

        Returns how many records are lost because they are in memory alone.
        """
        spool = self._spool
        if spool is None:
            return self._outbox.waiting
        if self._outbox.closed or self._is_delivered:
            spool.remove()
            return 0
        lost = spool.leave()
        if not self._sender.refusal:
            self._warnings.undelivered(self._outbox.waiting - lost)
        return lost

    @property
    def _is_delivered(self) -> bool:
        """Whether the collector has published all records, as a finished flush has confirmed."""
        return not self._outbox.waiting and 0 <= self._wanted <= self._outbox.flushed

    @property
    def _forked(self) -> bool:
        # A forked child must never touch gRPC: it would hang there (DataLoader's workers).
        return os.getpid() != self._process

    def _admit(self, batch: RowBlock) -> RowBlock:
        """Return the records of `batch` that are to be sent, without values if room is short.

        Under on_full="block" or "raise" this waits for room instead, until the sink closes or the
        run is refused. Records left out, or without values, are counted and stated as gaps.
        """
        weight = int(frame_weights(batch).sum())
        if self._on_full != "drop":
            self._changed.wait_for(lambda: self._room.has(weight) or self._deaf)
        if self._sender.closing or (self._deaf and self._spool is None):
            self._room.lose(batch, _REFUSED if self._sender.refusal else _CLOSED)
            return batch.nothing()
        # Waiting for room is in vain once the collector has refused the run: nothing is sent.
        if self._on_full != "drop" and not self._deaf:
            return batch
        return self._room.fitting(batch, weight)

    @property
    def _deaf(self) -> bool:
        return self._sender.finished or self._sender.closing

    # -- called by the sender thread

    def _run(self) -> None:
        if self._place is not None and self._hello.resume:
            self._earlier.deliver(self._place)
        if not self._sender.finished:
            self._sender.run()
        if self._sender.refusal:
            if self._spool is None:
                with self._changed:
                    self._outbox.drop()
                    self._changed.notify_all()
            self._warnings.refused(self._sender.refusal)

    def _moved(self, sentence: str) -> None:
        """Write the new collector's address into the spool's file spool.json, and log `sentence`.

        The sender thread calls this when the rank's records go to another one of several
        collectors from now on. If the file cannot be written, the log says so.
        """
        if self._spool is not None:
            try:
                self._spool.redirect(str(self.address))
            except OSError as fault:
                sentence += f" (its spool still names the old one: {fault.strerror or fault})"
        self._warnings.moved(sentence)


@dataclass(frozen=True, slots=True)
class _Published:
    """A flush that the collector was asked for, and which may still be under way.

    wanted: the number of the flush.

    await_published: called with this number and a timeout in seconds; waits until the flush is
        done.
    """

    await_published: Callable[[int, float | None], None]
    wanted: int

    def wait(self, timeout: float | None) -> None:
        """Block until the collector has published all records that were put before the flush.

        Raises FlushTimeoutError if this takes more than `timeout` seconds (None: no limit), and
        CollectorError if the collector has refused the run.
        """
        self.await_published(self.wanted, timeout)


def _batches(block: RowBlock) -> Iterator[RowBlock]:
    """Cut a block into blocks of about one message each, so that room is checked before each."""
    frames = np.cumsum(frame_weights(block)) // FRAME_BYTES
    cuts = np.flatnonzero(np.diff(frames)) + 1
    return block.cut([0, *cuts.tolist(), len(block)]) if len(block) else iter(())
