"""The bounded queue between the training threads and a sink, and the thread that drains it.

    training threads ── put, gap, edges, header ──▶ queue ── drain thread ──▶ block ──▶ sink
                     ── flush, close ─────────────▶

Flush and close are entries of the queue, as records are: the drain thread alone touches the sink,
in the order in which it was told. This is the one place that decides "never break training":
whatever a sink raises is counted, logged once, stored as a gap where that is possible, and goes no
further.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from concurrent.futures import TimeoutError as Late
from dataclasses import replace
from typing import Literal, TypeAlias

from anchorlib.block import RowBlock
from anchorlib.errors import AnchorError, FlushTimeoutError, QueueFullError
from anchorlib.names import escape, join
from anchorlib.record import Edges, Gap
from anchorlib.sinks.admission import Admission, check_edges
from anchorlib.sinks.base import Flushing, Sink
from anchorlib.sinks.deferred import Deferred, MakeBlock, WithoutValues, block_of_items
from anchorlib.sinks.losses import Losses
from anchorlib.sinks.statements import Statements

__all__ = ["OnFull", "RecordQueue"]

OnFull: TypeAlias = Literal["block", "drop", "raise"]

# Small records wait this long for company, so that one hand-over serves many of them: while the
# drain thread is at work, Python runs nothing of the training's.
_LINGER = 0.05
# So much does not wait, where the queue has room for four times as much. Each time the drain thread
# wakes up it takes Python's lock from a training that has better to do.
_WAKE_BYTES = 16 << 20
_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 2048
# Of the room, kept for records of which the summary alone will be stored.
_RESERVE = 8

# How long `close` waits past its timeout: for the batch that is being written when time is up, and
# then, the sink being revoked, for the one operation that its owner may be in.
_BATCH_SECONDS = 1.0
_OPERATION_SECONDS = 15.0

_FULL = "queue full"
_LATE = "not written before the session closed"


class _Flush(Future[Flushing]):
    """An entry of the queue: flush the sink. Its result waits for what the sink began."""


class _Close(Future[int]):
    """The last entry of the queue: close the sink. Its result: records not delivered."""


Entry: TypeAlias = Deferred | _Flush | _Close


class RecordQueue:
    """Hands deferred records to `sink` as blocks, in order, from a thread of its own.

    make: makes the block of what waited.

    limit_bytes bounds what waits (a single larger record is still taken, alone). Full, `put`
    waits ("block"), or the record's summary alone is kept and counted ("drop", "raise"; with
    "raise" the next `check` raises QueueFullError): an eighth of the room is kept for those. Where
    even they find no room, the record is left out.

    lock: guards all of it; who makes records may hold it while it does.
    """

    def __init__(
        self,
        sink: Sink,
        make: MakeBlock,
        *,
        limit_bytes: int,
        on_full: OnFull,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self._sink, self._make, self._admission = sink, make, Admission()
        self._limit = limit_bytes
        self._reserve = 0 if on_full == "block" else limit_bytes // _RESERVE
        self._room = limit_bytes - self._reserve
        self._urgent = min(_WAKE_BYTES, max(1, limit_bytes // 4))
        self._on_full = on_full
        self._on_start = on_start
        self.lock = threading.RLock()  # entering it costs less than entering the condition
        self._changed = threading.Condition(self.lock)
        self._waiting: deque[Entry] = deque()
        self._bytes = 0  # waiting or being put
        self._reserved = 0  # the same of those whose values will be left out
        self._taken = self._done = 0
        self._due = 0  # of those taken, so many are waited for
        self._asked = 0  # flushes and closes that wait
        self._in_hand: _Flush | _Close | None = None
        self._closing = self._revoked = self._drained = False
        self._deadline: float | None = None
        self._full_error: str | None = None
        self._late = 0  # lost because the session closed
        self._statements = Statements()
        self._losses = Losses(self._statements)
        self.blocked_seconds = 0.0
        self._thread = threading.Thread(target=self._drain, name="anchorlib-drain", daemon=True)
        self._thread.start()

    # -- the training threads' side

    def put(self, item: Deferred) -> None:
        """Take `item` over. Raises nothing."""
        with self.lock:
            if self.offer(item):
                return
            if not self._closing and (not self._bytes or self._waited(item)):
                self._take(item)
                return
            if self._closing:
                self._losses.lose(item, _LATE)
                item.release()
                return
            self._tell_full(item)
            self._take_bare(item)

    def offer(self, item: Deferred) -> bool:
        """Take `item` over if there is room; whether there was. `lock` is held."""
        before = self._bytes
        held = before + item.nbytes
        if held > self._room:
            return False
        self._waiting.append(item)
        self._taken += 1
        self._bytes = held
        if held >= self._urgent > before:  # past it the drain thread looks before it waits
            self._changed.notify_all()
        return True

    def _take(self, item: Deferred) -> None:
        self._waiting.append(item)
        self._taken += 1
        self._bytes += item.nbytes
        self._changed.notify_all()

    def _take_bare(self, item: Deferred) -> None:
        """Its values are left out; where there is room, they wait until their summary is made."""
        if self._reserved + item.nbytes > self._reserve:
            self._losses.lose(item, _FULL)
            item.release()
            return
        self._waiting.append(WithoutValues(item))
        self._taken += 1
        self._reserved += item.nbytes
        self._changed.notify_all()

    def _waited(self, item: Deferred) -> bool:
        """Wait for room for `item`, where that is the policy; whether there is. Lock held."""
        if self._on_full != "block":
            return False
        self._losses.warn_once(
            "blocked",
            f"the queue of {self._limit / 2**20:.0f} MiB is full and training waits for the "
            "store; record less, or start(on_full='drop')",
        )
        since = time.monotonic()
        self._due = self._taken
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: self._bytes + item.nbytes <= self._room or not self._bytes or self._closing
        )
        self.blocked_seconds += time.monotonic() - since
        return not self._closing

    def _tell_full(self, item: Deferred) -> None:
        where = escape(join(item.name, item.kind))
        message = f"the queue of {self._limit / 2**20:.0f} MiB was full at {where}"
        if self._on_full == "raise":
            self._full_error = f"{message}, step {item.step}; start(on_full='block') waits instead"
        self._losses.warn_once("full", f"{message}; values are dropped and counted")

    def check(self) -> None:
        """Raise QueueFullError if records were left out since the last check under "raise"."""
        message, self._full_error = self._full_error, None
        if message:
            raise QueueFullError(message)

    def gap(self, gap: Gap) -> None:
        """Count observations that never became records."""
        with self.lock:
            self._statements.gap(gap)

    def edges(self, edges: Edges) -> None:
        """Pass on what a value was computed from, with the next records."""
        try:
            check_edges(edges)
        except AnchorError as fault:
            self._losses.warn_once("edges", f"what a value was computed from was not kept: {fault}")
            return
        with self.lock:
            self._statements.edges(edges)

    def header(self, entries: Mapping[str, object]) -> None:
        """Pass on what the run's header has to say from now on, with the next records."""
        with self.lock:
            self._statements.header(entries)

    def flush(self, timeout: float | None = None) -> None:
        """Return when all that was taken before is in the store and visible to any reader.

        Raises FlushTimeoutError after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        asked = _Flush()
        with self._changed:
            if self._closing:
                return
            target = self._taken
            self._ask(asked)
        try:
            flushing = asked.result(timeout)
        except (Late, CancelledError):
            asked.cancel()
            told = "the session closed" if timeout is None else f"{timeout:g} s"
            raise FlushTimeoutError(
                f"{target - self._done} records still wait after {told}; "
                "flush again, or give it more time"
            ) from None
        except Exception as fault:  # noqa: BLE001  # a store's fault must not end training
            self._flush_failed(fault)
            return
        try:
            flushing.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except AnchorError:
            raise
        except Exception as fault:  # noqa: BLE001  # the same
            self._flush_failed(fault)

    def _flush_failed(self, fault: Exception) -> None:
        if isinstance(fault, AnchorError):
            raise fault
        self._losses.warn_once(f"flush:{type(fault).__name__}", f"flush failed: {fault}")

    def _ask(self, entry: _Flush | _Close) -> None:
        self._waiting.append(entry)
        self._asked += 1
        self._changed.notify_all()

    def close(self, timeout: float) -> int:
        """Drain, close the sink, end the thread; how many records were not delivered.

        Nothing is taken any more. What is not written within `timeout` seconds is counted; when
        `close` returns, nothing is written any more either.
        """
        last = _Close()
        with self._changed:
            self._stop_taking()
            self._deadline = time.monotonic() + timeout
            if self._drained:
                return self._late
            self._ask(last)
        if not wait([last], timeout + _BATCH_SECONDS).done:
            self._revoked = True
            self._sink.revoke()
            if not wait([last], _OPERATION_SECONDS).done:
                self._give_up(last)
        with self.lock:
            not_delivered = 0 if last.cancelled() else last.result()
            self._losses.records += not_delivered
            return self._late + not_delivered

    def _stop_taking(self) -> None:
        self._closing = True
        self._room = -1  # no offer finds room
        self._changed.notify_all()  # nobody waits for room either

    def _give_up(self, last: _Close) -> None:
        """One operation of the store does not end: what waits behind it is lost.

        Should it end after all, the drain thread finds nothing but `last` to do.
        """
        with self._changed:
            for item in self._answer_none():
                self._lose_late(item)
            if last is not self._in_hand:
                self._waiting.append(last)
        self._losses.warn_once(
            "stuck",
            f"the store has not ended one operation within {_OPERATION_SECONDS:g} s; "
            "the run stays locked until it does",
        )

    def _answer_none(self) -> list[Deferred]:
        """Ends every wait for what was asked; the records that waited. Lock held."""
        entries, self._waiting = self._waiting, deque()
        for entry in (*entries, self._in_hand):
            if isinstance(entry, _Flush | _Close):
                entry.cancel()
        return [entry for entry in entries if not isinstance(entry, _Flush | _Close)]

    # -- what is known of it, at any moment

    @property
    def gaps(self) -> int:
        """How many series, each for each reason, have a gap."""
        return self._statements.gaps + self._sink.own_gaps

    @property
    def waiting(self) -> int:
        """Records taken that are not in the store, or not yet acknowledged by a collector."""
        return self._taken - self._done + self._sink.waiting

    @property
    def retries(self) -> int:
        """How often the sink tried again."""
        return self._sink.retries

    @property
    def lost(self) -> int:
        """Records that were lost altogether, here or in the sink."""
        return self._losses.records + self._sink.lost

    @property
    def dropped(self) -> int:
        """Records that were lost, here or in the sink, or kept without their values."""
        return self._losses.records + self._losses.bare + self._sink.dropped

    @property
    def dropped_bytes(self) -> int:
        """Bytes of values among them."""
        return self._losses.nbytes + self._sink.dropped_bytes

    # -- the drain thread's side

    def _drain(self) -> None:
        try:
            if self._on_start is not None:
                self._on_start()
            while self._turn():
                pass
        finally:  # however it ends, nobody waits for this thread any more
            with self._changed:
                self._stop_taking()
                self._drained = True
                for item in self._answer_none():
                    self._lose_late(item)

    def _turn(self) -> bool:
        """Hand over what waits, then do what was asked after it; whether the queue goes on."""
        with self._changed:
            self._changed.wait_for(self._is_urgent, _LINGER)
            batch, asked = self._next_turn()
            self._in_hand = asked
        if batch:
            self._deliver(batch)
        self._tell(again=asked is not None)
        if isinstance(asked, _Flush):
            self._flush_sink(asked)
        if isinstance(asked, _Close):
            self._close_sink(asked)
            return False
        return True

    def _is_urgent(self) -> bool:
        """Whether what waits is to be handed over now."""
        return self._bytes >= self._urgent or self._done < self._due or self._asked > 0

    def _next_turn(self) -> tuple[list[Deferred], _Flush | _Close | None]:
        """The next records, and what was asked right after them. Lock held."""
        batch: list[Deferred] = []
        size = 0
        late = self._deadline is not None and time.monotonic() > self._deadline
        while self._waiting and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
            item = self._waiting.popleft()
            if isinstance(item, _Flush | _Close):
                self._asked -= 1
                return batch, item
            if late:
                self._lose_late(item)
                self._finished([item])
                continue
            batch.append(item)
            size += item.nbytes
        return batch, None

    def _lose_late(self, item: Deferred) -> None:
        """The session closed before this record was written. Lock held."""
        self._losses.lose(item, _LATE)
        self._late += 1

    def _deliver(self, batch: list[Deferred]) -> None:
        try:
            block = self._admission.admit(block_of_items(batch, self._make))
        except Exception:  # noqa: BLE001  # each by itself: one that is bad must not cost the others
            for item in batch:
                self._deliver_alone(item)
        else:
            self._put(block, batch)
        with self._changed:
            self._finished(batch)

    def _deliver_alone(self, item: Deferred) -> None:
        try:
            block = self._admission.admit(block_of_items([item], self._make))
        except Exception as fault:  # noqa: BLE001  # counted, logged, no further
            with self.lock:
                self._losses.lose_by(item, fault)
        else:
            self._put(block, [item])

    def _finished(self, items: list[Deferred]) -> None:
        """These have left the queue. Lock held."""
        for item in items:
            item.release()
            if isinstance(item, WithoutValues):
                self._reserved -= item.nbytes
            else:
                self._bytes -= item.nbytes
        self._done += len(items)
        self._changed.notify_all()

    def _put(self, block: RowBlock, items: list[Deferred]) -> None:
        """Hands the block of these items to the sink. Raises nothing."""
        with self.lock:
            for misfit in block.misfits:
                self._losses.leave_out(misfit)
        try:
            self._sink.put(replace(block, misfits=()))
        except Exception as fault:  # noqa: BLE001  # the sink boundary: counted, logged, no further
            with self.lock:
                for item in items:
                    if self._revoked:
                        self._lose_late(item)
                    else:
                        self._losses.lose_by(item, fault)
            return
        with self.lock:
            for item in items:
                if isinstance(item, WithoutValues) and item.keeps:
                    self._losses.lose_values(item)

    def _tell(self, *, again: bool) -> None:
        with self.lock:
            telling = self._statements.take(again=again)
        if not telling.tell(self._sink, self._not_told):
            with self.lock:
                self._statements.again(telling)

    def _not_told(self, lost: str, fault: Exception) -> None:
        if not self._revoked:  # `close` tells how much did not reach the store
            self._losses.warn_once(lost, f"{lost}: {fault}")

    def _flush_sink(self, asked: _Flush) -> None:
        flushing: Flushing | Exception
        try:
            flushing = self._sink.flush()
        except Exception as fault:  # noqa: BLE001  # raised, or told, where the flush was asked for
            flushing = fault
        with contextlib.suppress(InvalidStateError):  # who asked waits no longer
            if isinstance(flushing, Exception):
                asked.set_exception(flushing)
            else:
                asked.set_result(flushing)

    def _close_sink(self, last: _Close) -> None:
        left = max(0.0, (self._deadline or 0.0) - time.monotonic())
        undelivered = 0
        try:
            undelivered = self._sink.close(left)
        except Exception as fault:  # noqa: BLE001  # closing must not break training either
            self._losses.warn_once("close", f"the store could not be closed: {fault}")
        with contextlib.suppress(InvalidStateError):
            last.set_result(undelivered)
