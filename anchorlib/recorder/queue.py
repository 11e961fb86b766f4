"""The bounded queue between the training threads and a drain: the trainer's side of the ring.

    training threads ── put, gap, edges, … ──▶ ring ── drain ──▶ block ──▶ sink
                     ── flush, close ─────────────────────▶

Nothing here raises into training because the ring is full: records that find no room are counted
and stated as a gap, and one warning is logged.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from anchorlib.errors import AnchorError, FlushTimeoutError, QueueFullError
from anchorlib.names import escape, join
from anchorlib.operations import Entry
from anchorlib.record import UNKNOWN, Edges, Gap
from anchorlib.recorder.copies import Copier, Copies, Later
from anchorlib.recorder.layout import SLOT_BYTES, SlotKind, Word
from anchorlib.recorder.lost_records import LATE, LostRecords
from anchorlib.recorder.ring import Producer, Ring, aligned, move
from anchorlib.recorder.statement_placer import STATEMENT_BYTES, StatementPlacer
from anchorlib.recorder.statements import PendingStatements
from anchorlib.recorder.worker import Worker
from anchorlib.sinks import OnFull, check_edges, statable

if TYPE_CHECKING:
    from anchorlib.recorder._put import Putter

__all__ = ["RecordQueue", "Source", "ring_size"]

# The drain is woken when this many bytes wait, or a quarter of the queue: waking it for less would
# interrupt training more often.
_WAKE_BYTES: Final = 16 << 20
_RESERVE: Final = 8  # an eighth of the room is kept for records that are stored without values

# How long `close` waits past its timeout: for the batch that is being written then; and, after the
# sink was revoked, for its present operation.
_BATCH_SECONDS: Final = 1.0
_OPERATION_SECONDS: Final = 15.0
_BEGIN_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.0005

_FULL: Final = "queue full"
_INSIDE: Final = "anchored by a signal handler, in the middle of another anchor"
_OVER: Final = "the recorder has ended"
_UNKNOWN: Final = (
    UNKNOWN,
    "value",
    "",
)  # the series of a record for whose name the ring had no room

Source: TypeAlias = int | Callable[[int], object] | Later
"""The source of a record's values: their address; a function that writes them to a given address;
or a device, whose stream copies them later."""


def ring_size(limit_bytes: int) -> int:
    """Return how many bytes a ring needs for payload if at most `limit_bytes` of values may wait.

    Definitions and statements have room of their own, beside that of values.
    """
    return aligned(limit_bytes) + STATEMENT_BYTES


class _Put(NamedTuple):
    """The arguments of `RecordQueue.put`: one record that is to be placed in the ring.

    stream: the number of its series and phase. layout: the number of its dtype and shape.
    at: step, pass, call. folded: how many observations the record sums up.
    """

    source: Source
    nbytes: int
    stream: int
    layout: int
    at: tuple[Any, ...]
    order: int
    scale: float
    flags: int
    folded: int


class RecordQueue:
    """Places records in `ring`, which `worker` empties into the sink.

    limit_bytes: the most bytes of values that may wait. A single record that is larger is still
        recorded, while no other waits.
    on_full: what `put` does where the queue is full. "block": it waits. "drop" and "raise": only
        the record's summary is stored, and the loss is counted; an eighth of the room is reserved
        for such records, and one that finds no room there either is left out. With "raise" the next
        `check` raises QueueFullError as well.

    lock: guards the queue; a thread may hold it while it makes records. A thread that has put a
        record with later values calls `fill` after it has released the lock.
    putter: the compiled code that places ordinary records; None without it, and after `close`.
    """

    def __init__(self, ring: Ring, worker: Worker, *, limit_bytes: int, on_full: OnFull) -> None:
        self._ring, self._worker, self._producer = ring, worker, Producer(ring)
        self._limit = aligned(limit_bytes)
        reserve = 0 if on_full == "block" else self._limit // _RESERVE
        self._room = self._limit - reserve
        self._urgent = min(_WAKE_BYTES, max(1, limit_bytes // 4), ring.slot_count * SLOT_BYTES)
        self._since = 0  # bytes placed since the drain was woken, or needed no waking
        self._on_full = on_full
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._taken = 0
        self._closing = False
        self.putter: Putter | None = None
        self._full_error: str | None = None
        self._statements = PendingStatements()
        self._losses = LostRecords(self._statements, worker.warn)
        self._copies = Copies(ring, self._warn_not_copied)
        self._copier: Copier | None = None
        self._stuck = 0  # records lost behind an operation of the store that never ended
        self.blocked_seconds = 0.0
        self._placer = StatementPlacer(
            ring,
            self._producer,
            worker,
            self._statements,
            self._losses,
            lambda: on_full == "block" and not self._is_over,
            self._wait,
        )

    @property
    def placing(self) -> bool:
        """Whether a record is being placed in the ring, by Python, at this moment."""
        return self._producer.placing

    def put_by(self, make: Callable[[Ring, int], Putter | None]) -> None:
        """Set `putter` to the result of make(ring, bytes of payload that records may use)."""
        self.putter = make(self._ring, self._room)

    def copy_by(self, make: Callable[[Ring, Callable[[str], None]], Copier]) -> Copier:
        """Return the copier that `make` makes of the ring and of a function that logs a warning.

        A copier brings values from a GPU into the ring. The queue closes it at its own end.
        """
        self._copier = make(self._ring, self._worker.warn)
        return self._copier

    def fill(self) -> None:
        """Begin to copy the values of records that this thread has put with a `Later` source.

        Call it without holding `lock`. It does not wait for the copies.
        """
        self._copies.fill()

    def _warn_not_copied(self, fault: Exception) -> None:
        self._losses.warn_once(
            f"device:{type(fault).__name__}",
            f"values on a device were not copied: {type(fault).__name__}: {str(fault)[:200]}; "
            "training goes on, and what is lost is counted",
        )

    # -- definitions

    def stream(self, name: str, kind: str, mode: str, phase: str, *, keeps: bool) -> int:
        """Return the number by which `put` names a series in one phase; it is defined if new.

        Returns -1 if the ring has no room for the definition now.
        keeps: whether the series' mode keeps values.
        """
        with self.lock:
            return self._placer.stream((name, kind, mode, phase), keeps=keeps)

    def layout(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Return the number by which `put` names a dtype and shape; it is defined if new.

        Returns -1 if the ring has no room for the definition now.
        """
        with self.lock:
            return self._placer.layout(dtype, shape)

    # -- records

    def put(  # noqa: PLR0913  # the fields of a slot: making a tuple of them would take time
        self,
        source: Source,
        nbytes: int,
        stream: int,
        layout: int,
        at: tuple[Any, ...],
        order: int,
        scale: float = 1.0,
        flags: int = 0,
        count: int = 1,
    ) -> None:
        """Place a record in the ring, or count it as lost. The caller holds `lock`. Raises nothing.

        source, nbytes: where the values come from, and their size.
        stream, layout: what the methods of these names returned. at: step, pass, call and phase.
        order: the record's place in the run. scale: the loss scale of a gradient.
        flags: bits of `Flag`. count: how many observations the record sums up.
        """
        producer = self._producer
        if producer.placing:
            self._losses.lose(*self._named(stream, nbytes, at[0]), _INSIDE)
            return
        with producer:
            pos = producer.place(nbytes, self._room)
            if pos >= 0 and stream >= 0 and layout >= 0:
                if isinstance(source, int):
                    producer.copy(pos, source, nbytes)
                    try:
                        producer.publish(
                            pos, nbytes, stream, layout, at, order, scale, flags, count
                        )
                    except (struct.error, OverflowError) as fault:
                        self._losses.lose_by([self._named(stream, nbytes, at[0])], fault)
                    else:
                        self.placed(nbytes)
                    return
                put = _Put(source, nbytes, stream, layout, at, order, scale, flags, count)
                if self._publish(put, pos, producer.address(pos)):
                    self.placed(nbytes)
                return
        self._put_full(_Put(source, nbytes, stream, layout, at, order, scale, flags, count))

    def placed(self, nbytes: int) -> None:
        """Count a record of `nbytes` bytes that was placed in the ring, and wake the drain if due.

        The caller holds `lock`.
        """
        self._taken += 1
        self._since = since = self._since + nbytes + SLOT_BYTES
        if since >= self._urgent:
            self._wake_if_due()

    def _wake_if_due(self) -> None:
        self._since = held = self._producer.held
        if held >= self._urgent:
            self._since = 0
            self._worker.wake()

    def _put_full(self, put: _Put) -> None:
        """Handle a record for which the ring has no room now, as the option `on_full` says."""
        self._copies.settle()  # a device that has failed must not keep the ring full
        if self._on_full == "block" and not self._is_over:
            self._wait_for_room(put)
        if self._is_over:
            self._lose(put, LATE if self._closing else _OVER)
        elif put.stream < 0 or put.layout < 0:
            self._lose(put, _FULL)
        elif self._is_outside(put) and self._is_empty():
            self._put_outside(put)
        elif self._on_full == "block":
            self.put(*put)
        else:
            self._warn_full(put)
            self._put_bare(put)

    def _is_outside(self, put: _Put) -> bool:
        """Return whether a record is larger than all the room that the ring has for values."""
        return aligned(put.nbytes) > self._room

    def _is_empty(self) -> bool:
        ring = self._ring
        # An exception, as Ctrl-C, between publishing and counting leaves `_taken` one short.
        return ring[Word.RECORDS] == self._taken or ring[Word.CONSUMED] == ring[Word.PUBLISHED]

    def _wait_for_room(self, put: _Put) -> None:
        """Block until there is room for the record `put`, or the queue closes."""
        self._losses.warn_once(
            "blocked",
            f"the queue of {self._limit / 2**20:.0f} MiB is full and training waits for the "
            "store; record less, or start(on_full='drop')",
        )
        since = time.monotonic()
        outside = self._is_outside(put)
        self._worker.wake()
        while not self._is_over and not (
            self._is_empty() if outside else self._producer.place(put.nbytes, self._room) >= 0
        ):
            self._wait()
        self.blocked_seconds += time.monotonic() - since

    @property
    def _is_over(self) -> bool:
        """Whether the queue is closing or its drain has ended, so that records are refused."""
        return self._closing or self._worker.is_over

    def _wait(self) -> None:
        """Release the lock for a moment, so that other threads and the drain can run."""
        self._copies.fill()  # the drain may wait for these copies: begin them before waiting for it
        self._copies.settle()
        self._worker.wake()
        self._changed.wait(_POLL_SECONDS)

    def _put_outside(self, put: _Put) -> None:
        try:
            number, address, owner = self._worker.lend(put.nbytes)
        except (OSError, MemoryError) as fault:
            self._losses.lose_by([self._named(put.stream, put.nbytes, put.at[0])], fault)
            return
        with self._producer:
            self._publish_now(put, number, address, SlotKind.OUTSIDE, owner)

    def _put_bare(self, put: _Put) -> None:
        """Place a record in the reserved room, or count it as lost; only its summary is stored.

        Its values are in the ring until the drain has computed the summary.
        """
        with self._producer as producer:
            pos = producer.place(put.nbytes, self._limit)
            if pos < 0:
                self._lose(put, _FULL)
                return
            self._publish_now(put, pos, producer.address(pos), SlotKind.BARE)

    def _publish_now(
        self, put: _Put, pos: int, address: int, kind: SlotKind, owner: object = None
    ) -> None:
        if self._publish(put, pos, address, kind, owner):
            self._taken += 1
            self._worker.wake()

    def _publish(
        self,
        put: _Put,
        pos: int,
        address: int,
        kind: SlotKind = SlotKind.VALUES,
        owner: object = None,
    ) -> bool:
        """Copy a record's values to `address` and publish its slot; return whether that succeeded.

        pos: the values' position in the ring's payload, or the number of memory outside the ring.
        owner: an object that keeps that memory alive.
        """
        source, nbytes, stream, layout, at, order, scale, flags, folded = put
        comes_later = isinstance(source, Later)
        try:
            if isinstance(source, Later):
                self._copies.reserve(source, address, owner)
            elif isinstance(source, int):
                move(address, source, nbytes)
            else:
                source(address)
            self._producer.publish(
                pos, nbytes, stream, layout, at, order, scale, flags, folded, kind, comes_later
            )
        except (struct.error, OverflowError) as fault:
            self._copies.cancel()
            self._losses.lose_by([self._named(stream, nbytes, at[0])], fault)
            return False
        except BaseException:
            if comes_later:
                self._copies.cancel()
            raise
        return True

    def _lose(self, put: _Put, reason: str) -> None:
        self._losses.lose(*self._named(put.stream, put.nbytes, put.at[0]), reason)

    def _named(self, stream: int, nbytes: int, step: int) -> tuple[tuple[str, str, str], int, int]:
        series, keeps = self._placer.kept[stream] if stream >= 0 else (_UNKNOWN, True)
        return series, step, nbytes if keeps else 0

    def _warn_full(self, put: _Put) -> None:
        (name, kind, _), step, _ = self._named(put.stream, 0, put.at[0])
        message = (
            f"the queue of {self._limit / 2**20:.0f} MiB was full at {escape(join(name, kind))}"
        )
        if self._on_full == "raise":
            self._full_error = f"{message}, step {step}; start(on_full='block') waits instead"
        self._losses.warn_once("full", f"{message}; values are dropped and counted")

    def check(self) -> None:
        """Raise QueueFullError if values were dropped since the last call.

        This is done only if the queue was made with on_full="raise".
        """
        message, self._full_error = self._full_error, None
        if message:
            raise QueueFullError(message)

    # -- statements

    def gap(self, gap: Gap) -> None:
        """Count observations that never became records, and state them as a gap."""
        with self.lock:
            self._statements.gap(statable(gap))
            self._placer.place_statements_if_due()

    def edges(self, edges: Edges) -> None:
        """Send the drain lineage: which tensors and operations a value was computed from."""
        try:
            check_edges(edges)
        except AnchorError as fault:
            self._losses.warn_once("edges", f"what a value was computed from was not kept: {fault}")
            return
        with self.lock:
            self._statements.edges(edges)
            self._placer.place_statements_if_due()

    def header(self, entries: Mapping[str, object]) -> None:
        """Send the drain entries of the run's header."""
        with self.lock:
            self._statements.header(entries)
            self._placer.place_statements_if_due()

    def operations(self, entries: Sequence[Entry]) -> None:
        """Send the drain entries of the log of traced operations."""
        with self.lock:
            self._statements.operations(entries)
            self._placer.place_statements_if_due()

    # -- waiting for the drain

    def flush(self, timeout: float | None = None) -> None:
        """Block until all records so far are in the store and visible to any reader.

        Raises FlushTimeoutError after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            if self._closing:
                return
            self._placer.place_statements(timeout)
            target = self._taken
            asked = self._worker.ask("flush", self._ring[Word.PUBLISHED], timeout)
        self._copies.watch(asked, timeout)
        try:
            flushing = asked.result(_left(deadline))
            if not isinstance(flushing, int):
                flushing.wait(_left(deadline))
        except AnchorError:
            raise
        except (Late, CancelledError):
            ended = "the session closed" if timeout is None else f"{timeout:g} s"
            raise FlushTimeoutError(
                f"{target - self._ring[Word.RECORDS]} records still wait after {ended}; "
                "flush again, or give it more time"
            ) from None
        except Exception as fault:  # noqa: BLE001  # a store's fault must not end training
            self._losses.warn_once(f"flush:{type(fault).__name__}", f"flush failed: {fault}")

    def close(self, timeout: float) -> int:
        """Empty the ring, close the sink, end the worker; return how many records are lost.

        Later records are counted as lost, and so are records that are not stored within `timeout`
        seconds. Nothing is written after `close` has returned.
        """
        self._worker.ready.wait(_BEGIN_SECONDS)  # a run may be shorter than a recorder's start
        with self.lock:
            self._closing = True
            self._room, self.putter = -1, None
            self._changed.notify_all()
            self._placer.place_statements(timeout)
            asked = self._worker.ask("close", self._ring[Word.PUBLISHED], timeout)
        deadline = time.monotonic() + timeout + _BATCH_SECONDS
        self._copies.watch(asked, timeout + _BATCH_SECONDS)
        if not wait([asked], _left(deadline)).done:
            self._worker.revoke()
            if not wait([asked], _OPERATION_SECONDS).done:
                self._give_up()
        self._worker.end()
        is_still = self._copier is None or self._copier.close()
        if asked.cancelled():
            self._stuck = self._taken - self._ring[Word.RECORDS]
            return self._stuck
        if is_still:
            self._ring.give_back()
        return int(asked.result())

    def _give_up(self) -> None:
        """Cancel all requests to a drain whose store hangs; the records that wait are lost."""
        self._worker.cancel()
        self._losses.warn_once(
            "stuck",
            f"the store has not ended one operation within {_OPERATION_SECONDS:g} s; "
            f"{self._worker.given_up}",
        )

    # -- counters, which may be read at any moment

    @property
    def gaps(self) -> int:
        """How many gap statements there are: one for each series and reason of a loss."""
        return max(self._statements.gaps, self._ring[Word.GAPS])

    @property
    def handed_over(self) -> int:
        """How many records the drain has read from the ring, for the sink or as losses."""
        return self._ring[Word.RECORDS]

    @property
    def waiting(self) -> int:
        """How many records are not yet in the store, or not acknowledged by the collector."""
        return self._taken - self.handed_over + self._ring[Word.WAITING]

    @property
    def retries(self) -> int:
        """How often the sink tried again to deliver records, after a failure."""
        return self._ring[Word.RETRIES]

    @property
    def lost(self) -> int:
        """How many records were lost altogether, in the queue, the drain or the sink."""
        return self._losses.records + self._stuck + self._ring[Word.LOST]

    @property
    def dropped(self) -> int:
        """How many records were lost altogether, or kept without their values."""
        return self.lost + self._ring[Word.BARE]

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the values that dropped records had."""
        return self._losses.nbytes + self._ring[Word.LOST_BYTES]


def _left(deadline: float | None) -> float | None:
    """Return the seconds until `deadline` (monotonic), at least 0; None if there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
