"""Places records in the ring, and decides what becomes of those for which the ring has no room.

Nothing here raises into training because the ring is full: records that find no room are counted
and stated as a gap, and one warning is logged.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from anchorlib.errors import QueueFullError
from anchorlib.names import escape, join
from anchorlib.record import UNKNOWN
from anchorlib.recorder.copies import Copies, Later
from anchorlib.recorder.layout import SLOT_BYTES, SlotKind, Word
from anchorlib.recorder.lost_records import LATE, LostRecords
from anchorlib.recorder.ring import Producer, Ring, aligned, move
from anchorlib.recorder.worker import Worker
from anchorlib.sinks import OnFull

__all__ = ["RecordPlacer", "Source"]

# The drain is woken when this many bytes wait, or a quarter of the queue: waking it for less would
# interrupt training more often.
_WAKE_BYTES: Final = 16 << 20
_RESERVE: Final = 8  # an eighth of the room is kept for records that are stored without values
_POLL_SECONDS: Final = 0.0005

_FULL: Final = "queue full"
_INSIDE: Final = "anchored by a signal handler, in the middle of another anchor"
_OVER: Final = "the recorder has ended"
# The series of a record for whose name the ring had no room.
_UNKNOWN: Final = (UNKNOWN, "value", "")

Source: TypeAlias = int | Callable[[int], object] | Later
"""The source of a record's values: their address; a function that writes them to a given address;
or a device, whose stream copies them later."""


class _Put(NamedTuple):
    """The arguments of `RecordPlacer.put`: one record that is to be placed in the ring.

    stream: the number of the record's series and phase.
    layout: the number of the record's dtype and shape.
    at: step, pass, call and phase.
    folded: how many observations the record sums up.
    The other fields are as for `RecordPlacer.put`.
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


class RecordPlacer:
    """Places records in a ring. The caller of a method has to hold the queue's lock.

    kept: for each stream, by its number, (its series, whether the series' mode keeps values).
    changed: the condition of the queue's lock; a wait for room releases it.
    limit_bytes: the most bytes of values that may wait. A single record that is larger is still
        recorded, while no other waits.
    on_full: what `put` does where the ring is full. "block": it waits. "drop" and "raise": only
        the record's summary is stored, and the loss is counted. An eighth of the room is reserved
        for these records; if that is full too, the record is lost. With "raise" the next `check`
        raises QueueFullError as well.

    room: bytes of payload that records with values may use; -1 once records are refused.
    taken: how many records were placed.
    closing: whether the queue is closing, so that records are refused.
    blocked_seconds: how long training has waited for room.
    """

    def __init__(  # noqa: PLR0913  # the objects that it connects
        self,
        ring: Ring,
        producer: Producer,
        worker: Worker,
        copies: Copies,
        losses: LostRecords,
        kept: Sequence[tuple[tuple[str, str, str], bool]],
        changed: threading.Condition,
        *,
        limit_bytes: int,
        on_full: OnFull,
    ) -> None:
        self._ring, self._producer, self._worker = ring, producer, worker
        self._copies, self._losses, self._kept = copies, losses, kept
        self._changed = changed
        self._limit = aligned(limit_bytes)
        reserve = 0 if on_full == "block" else self._limit // _RESERVE
        self.room = self._limit - reserve
        self._urgent = min(_WAKE_BYTES, max(1, limit_bytes // 4), ring.slot_count * SLOT_BYTES)
        self._since = 0  # bytes placed since the drain was woken, or needed no waking
        self._on_full = on_full
        self._full_error: str | None = None
        self.taken = 0
        self.closing = False
        self.blocked_seconds = 0.0

    @property
    def placing(self) -> bool:
        """Whether a record or statement is being placed in the ring by Python code at this moment.

        The compiled code, which places ordinary records, must not be called meanwhile.
        """
        return self._producer.placing

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
        """Place a record in the ring, or count it as lost. Raises only what `source` raises.

        May block while the ring is full, if `on_full` is "block".

        source: where the values come from: their address; a function that writes them to a given
            address; or a `Later`, whose device copies them later.
        nbytes: the size of the values.
        stream, layout: the numbers that `RecordQueue.stream` and `RecordQueue.layout` returned; -1
            for a definition that found no room: then the record is lost.
        at: step, pass, call and phase.
        order: the record's place in the run.
        scale: the loss scale that the values are multiplied by.
        flags: bits of `Flag`.
        count: how many observations the record sums up.
        """
        producer = self._producer
        if producer.placing:
            self._losses.lose(*self._named(stream, nbytes, at[0]), _INSIDE)
            return
        with producer:
            pos = producer.place(nbytes, self.room)
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
        """Count a placed record of `nbytes` bytes; wake the drain if enough bytes are waiting."""
        self.taken += 1
        self._since = since = self._since + nbytes + SLOT_BYTES
        if since >= self._urgent:
            self._wake_if_due()

    def _wake_if_due(self) -> None:
        self._since = held = self._producer.held
        if held >= self._urgent:
            self._since = 0
            self._worker.wake()

    def _put_full(self, put: _Put) -> None:
        """Handle a record for which the ring has no room now, as the option `on_full` says.

        A record that is larger than the ring goes into memory outside of it if no other waits. The
        record is lost where records are refused, or its definition found no room.
        """
        self._copies.settle()  # a device that has failed must not keep the ring full
        if self._on_full == "block" and not self.is_over:
            self._wait_for_room(put)
        if self.is_over:
            self._lose(put, LATE if self.closing else _OVER)
        elif put.stream < 0 or put.layout < 0:
            self._lose(put, _FULL)
        elif self._is_outside(put) and self._is_empty():
            self._put_outside(put)
        elif self._on_full == "block":
            self.put(*put)
        else:
            self._warn_full(put)
            self._put_summary_only(put)

    def _is_outside(self, put: _Put) -> bool:
        """Return whether a record is larger than all the room that the ring has for values."""
        return aligned(put.nbytes) > self.room

    def _is_empty(self) -> bool:
        ring = self._ring
        # An exception, as Ctrl-C, between publishing and counting leaves `_taken` one short.
        return ring[Word.RECORDS] == self.taken or ring[Word.CONSUMED] == ring[Word.PUBLISHED]

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
        while not self.is_over and not (
            self._is_empty() if outside else self._producer.place(put.nbytes, self.room) >= 0
        ):
            self.wait()
        self.blocked_seconds += time.monotonic() - since

    @property
    def is_over(self) -> bool:
        """Whether records are refused: the queue closes, or nothing empties the ring any more."""
        return self.closing or self._worker.is_over

    def wait(self) -> None:
        """Release the queue's lock for a moment, so that other threads run; wake the drain.

        Returns after this moment, whether or not the ring has been emptied.
        """
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

    def _put_summary_only(self, put: _Put) -> None:
        """Place a record of which only the summary is to be stored, or count it as lost.

        The record may use the reserved room. Its values stay in the ring until the drain has
        computed the summary.
        """
        with self._producer as producer:
            pos = producer.place(put.nbytes, self._limit)
            if pos < 0:
                self._lose(put, _FULL)
                return
            self._publish_now(put, pos, producer.address(pos), SlotKind.SUMMARY_ONLY)

    def _publish_now(
        self, put: _Put, pos: int, address: int, kind: SlotKind, owner: object = None
    ) -> None:
        if self._publish(put, pos, address, kind, owner):
            self.taken += 1
            self._worker.wake()

    def _publish(
        self,
        put: _Put,
        pos: int,
        address: int,
        kind: SlotKind = SlotKind.VALUES,
        owner: object = None,
    ) -> bool:
        """Copy a record's values to `address` and publish its slot; return whether this succeeded.

        A device copies later. If the slot cannot hold the record's numbers, the record is counted
        as lost, and the result is False.

        pos: the values' position in the ring's payload, or the number of memory outside the ring.
        owner: an object that keeps memory outside the ring alive; None for memory of the ring.
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
        series, keeps = self._kept[stream] if stream >= 0 else (_UNKNOWN, True)
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
        """Raise QueueFullError if values were dropped since the last call of `check`.

        Does nothing unless the queue was made with on_full="raise".
        """
        message, self._full_error = self._full_error, None
        if message:
            raise QueueFullError(message)

    def refuse(self) -> None:
        """Take no more records, as the queue is closing: those that come are counted as lost."""
        self.closing = True
        self.room = -1
