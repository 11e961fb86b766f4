"""The bounded queue between the training thread and a sink, and the thread that drains it.

    training thread ── put ──▶ queue (bytes bounded) ── drain thread ──▶ summary ──▶ sink

This is the one place that decides "never break training": whatever a sink raises is counted,
logged once, stored as a gap where that is possible, and goes no further.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from anchorlib.errors import AnchorError, FlushTimeoutError, QueueFullError
from anchorlib.names import escape, join
from anchorlib.record import Edges, Gap, Record
from anchorlib.sinks.admission import Admission, check_edges, statable
from anchorlib.sinks.base import Sink
from anchorlib.summary import Summary, summarise_all

__all__ = ["Deferred", "OnFull", "RecordQueue"]

OnFull: TypeAlias = Literal["block", "drop", "raise"]

_log = logging.getLogger("anchorlib")

# Small records wait this long for company, so that one hand-over serves many of them: while the
# drain thread is at work, Python runs nothing of the training's.
_LINGER = 0.05
# So much does not wait, where the queue has room for four times as much. Each time the drain thread
# wakes up it takes Python's lock from a training that has better to do.
_WAKE_BYTES = 16 << 20
_BATCH_BYTES = 8 << 20
_SUMMARIES = 4096  # that may wait where values find no room: about 8 MiB
_BATCH_RECORDS = 2048


class Deferred(Protocol):
    """A record that is still to be made: everything costly happens on the drain thread."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def kind(self) -> str:
        """The tensor's kind."""

    @property
    def mode(self) -> str:
        """The mode's canonical text."""

    @property
    def step(self) -> int:
        """The step it was observed in."""

    @property
    def nbytes(self) -> int:
        """What it holds in memory while it waits."""

    def storage(self) -> tuple[np.ndarray[Any, Any], str] | None:
        """Its raw storage and dtype; None where its summary is made already."""

    def record(self, summary: Any = None) -> Record:
        """The finished record. `summary` is that of its storage; None: it makes its own."""

    @property
    def bare(self) -> bool:
        """Whether it is what `summary_alone` gave."""

    @property
    def lost(self) -> bool:
        """Whether values that should have been kept were left out."""

    def summary_alone(self) -> Deferred:
        """The same record without its values, its summary made now."""

    def release(self) -> None:
        """The record has been put: its memory may be used again."""


class RecordQueue:
    """Hands deferred records to `sink`, in order, from a thread of its own.

    limit_bytes bounds what waits (a single larger record is still taken, alone). Full, `put`
    waits ("block"), or keeps the record's summary alone and counts it ("drop", "raise"; with
    "raise" the next `check` raises QueueFullError). Where even summaries find no room, the record
    is left out.

    lock: guards all of it; who makes records may hold it while it does.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        limit_bytes: int,
        on_full: OnFull,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self._sink = sink
        self._admission = Admission()
        self._limit = limit_bytes
        self._urgent = min(_WAKE_BYTES, max(1, limit_bytes // 4))
        self._on_full = on_full
        self._on_start = on_start
        self.lock = threading.RLock()  # entering it costs less than entering the condition
        self._changed = threading.Condition(self.lock)
        self._waiting: deque[Deferred] = deque()
        self._bytes = 0  # waiting or being put
        self._summaries = 0  # of those without values, that found no room otherwise
        self._taken = 0
        self._done = 0
        self._due = 0  # of those taken, so many are waited for
        self._closing = False
        self._full_error: str | None = None
        self._logged: set[str] = set()
        self._gaps: dict[tuple[str, str, str, str], Gap] = {}
        self._gaps_told = 0
        self._edges: list[Edges] = []
        self._header: dict[str, Any] = {}
        self.records = self._put_bytes = self._lost = 0
        self.blocked_seconds = 0.0
        self._thread = threading.Thread(target=self._drain, name="anchorlib-drain", daemon=True)
        self._thread.start()

    # -- the training thread's side

    def put(self, item: Deferred) -> None:
        """Take `item` over. Raises nothing."""
        with self.lock:
            if self.offer(item):
                return
            if not self._bytes or self._waited(item):
                self._take(item)
                return
            self._tell_full(item)
        self._put_summary(item)

    def offer(self, item: Deferred) -> bool:
        """Take `item` over if there is room; whether there was. `lock` is held."""
        before = self._bytes
        held = before + item.nbytes
        if held > self._limit:
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

    def _waited(self, item: Deferred) -> bool:
        """Wait for room for `item`, where that is the policy; whether there is. Lock held."""
        if self._on_full != "block":
            return False
        self._warn_once(
            "blocked",
            f"the queue of {self._limit / 2**20:.0f} MiB is full and training waits for the "
            "store; record less, or start(on_full='drop')",
        )
        since = time.monotonic()
        self._due = self._taken
        self._changed.notify_all()
        self._changed.wait_for(self._has_room(item.nbytes))
        self.blocked_seconds += time.monotonic() - since
        return self._thread.is_alive()

    def _tell_full(self, item: Deferred) -> None:
        where = escape(join(item.name, item.kind))
        message = f"the queue of {self._limit / 2**20:.0f} MiB was full at {where}"
        if self._on_full == "raise":
            self._full_error = f"{message}, step {item.step}; start(on_full='block') waits instead"
        self._warn_once("full", f"{message}; values are dropped and counted")

    def _put_summary(self, item: Deferred) -> None:
        """Keep what can be kept of a record whose values find no room."""
        try:
            bare = item.summary_alone()
        except Exception as fault:  # noqa: BLE001  # training goes on
            self._lose(item.name, item.kind, item.mode, item.step, fault)
            return
        finally:
            item.release()
        with self._changed:
            kept = self._summaries < _SUMMARIES
            if kept:
                self._summaries += 1
                self._take(bare)
            if not kept or bare.lost:
                self._lost += 1
                reason = "queue full: values dropped" if kept else "queue full"
                self._count_gap(item.name, item.kind, item.mode, reason, 1, item.step, item.step)

    def _has_room(self, nbytes: int) -> Callable[[], bool]:
        return lambda: (
            self._bytes + nbytes <= self._limit or not self._bytes or not self._thread.is_alive()
        )

    def check(self) -> None:
        """Raise QueueFullError if records were left out since the last check under "raise"."""
        message, self._full_error = self._full_error, None
        if message:
            raise QueueFullError(message)

    def gap(self, gap: Gap) -> None:
        """Count observations that never became records."""
        with self._changed:
            self._count_gap(
                gap.name, gap.kind, gap.mode, gap.reason, gap.count, gap.first_step, gap.last_step
            )

    def edges(self, edges: Edges) -> None:
        """Pass on what a value was computed from, with the next records."""
        try:
            check_edges(edges)
        except AnchorError as fault:
            self._warn_once("edges", f"what a value was computed from was not kept: {fault}")
            return
        with self._changed:
            self._edges.append(edges)

    def header(self, entries: Mapping[str, Any]) -> None:
        """Pass on what the run's header has to say from now on, with the next records."""
        with self._changed:
            self._header |= entries

    @property
    def gaps(self) -> int:
        """How many series, each for each reason, have a gap."""
        return len(self._gaps) + self._sink.own_gaps

    @property
    def waiting(self) -> int:
        """Records taken that are not in the store, or not yet acknowledged by a collector."""
        return self._taken - self._done + self._sink.waiting

    @property
    def bytes(self) -> int:
        """Bytes of values that were put and kept."""
        return self._put_bytes - self._sink.dropped_bytes

    @property
    def retries(self) -> int:
        """How often the sink tried again."""
        return self._sink.retries

    def flush(self, timeout: float | None = None) -> None:
        """Return when all that was taken before is in the store and visible to any reader."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._drained(self._taken, timeout)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            self._tell_beside()
            self._tell_gaps()
            self._sink.flush(left)
        except AnchorError:
            raise
        except Exception as fault:  # noqa: BLE001  # a store's fault must not end training
            self._warn_once(f"flush:{type(fault).__name__}", f"flush failed: {fault}")

    def _drained(self, target: int, timeout: float | None) -> None:
        with self._changed:
            self._due = target
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._done >= target or not self._thread.is_alive(), timeout
            )
            if not done:
                raise FlushTimeoutError(
                    f"{target - self._done} records still wait after {timeout:g} s; "
                    "flush again, or give it more time"
                )

    def close(self, timeout: float) -> int:
        """Drain, close the sink, end the thread; how many records were not delivered."""
        deadline = time.monotonic() + timeout
        try:
            self._drained(self._taken, timeout)
        except FlushTimeoutError as late:
            self._warn_once("late", str(late))
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()) + 1.0)
        undelivered = 0
        try:
            self._tell_beside()
            self._tell_gaps()
            undelivered = self._sink.close(max(0.0, deadline - time.monotonic()))
        except Exception as fault:  # noqa: BLE001  # closing must not break training either
            self._warn_once("close", f"the store could not be closed: {fault}")
        self.records -= undelivered
        undelivered += self._taken - self._done
        self._lost += undelivered
        return undelivered

    @property
    def dropped(self) -> int:
        """Records that were lost, here or in the sink, or kept without their values."""
        return self._lost + self._sink.dropped

    # -- the drain thread's side

    def _drain(self) -> None:
        if self._on_start is not None:
            self._on_start()
        while True:
            with self._changed:
                if self._closing and not self._waiting:
                    return
                self._changed.wait_for(self._is_urgent, _LINGER)
                batch = self._next_batch()
            if batch:
                self._deliver(batch)

    def _is_urgent(self) -> bool:
        """Whether what waits is to be handed over now."""
        return self._bytes >= self._urgent or self._done < self._due or self._closing

    def _next_batch(self) -> list[Deferred]:
        batch: list[Deferred] = []
        size = 0
        while self._waiting and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
            item = self._waiting.popleft()
            batch.append(item)
            size += item.nbytes
        return batch

    def _deliver(self, batch: list[Deferred]) -> None:
        records: list[Record] = []
        for item, summary in zip(batch, _summaries(batch), strict=True):
            try:
                records.append(self._admission.check(item.record(summary)))
            except Exception as fault:  # noqa: BLE001  # one bad record must not cost the others
                self._lose(item.name, item.kind, item.mode, item.step, fault)
        if records:
            self._put(records)
        size = 0
        for item in batch:
            item.release()
            size += item.nbytes
        with self._changed:
            self._done += len(batch)
            self._bytes -= size
            self._summaries -= sum(item.bare for item in batch)
            self._changed.notify_all()

    def _put(self, records: list[Record]) -> None:
        try:
            self._sink.put(records)
            self._tell_beside()
            if len(self._gaps) != self._gaps_told:
                self._tell_gaps()
        except Exception as fault:  # noqa: BLE001  # the sink boundary: counted, logged, no further
            for record in records:
                self._lose(record.name, record.kind, record.mode, record.coordinates.step, fault)
            return
        self.records += len(records)
        for record in records:
            self._put_bytes += record.nbytes

    def _lose(self, name: str, kind: str, mode: str, step: int, fault: Exception) -> None:
        reason = f"{type(fault).__name__}: {fault}"[:200]
        with self._changed:
            self._lost += 1
            self._count_gap(name, kind, mode, reason, 1, step, step)
        self._warn_once(
            f"lost:{type(fault).__name__}",
            f"{escape(join(name, kind))} at step {step} was not recorded: {reason}; training goes "
            "on, and what is lost is counted",
        )

    def _tell_gaps(self) -> None:
        with self._changed:
            gaps = list(self._gaps.values())
            self._gaps_told = len(gaps)
        if gaps:
            self._sink.gap(gaps)

    def _tell_beside(self) -> None:
        with self._changed:
            edges, self._edges = self._edges, []
            header, self._header = self._header, {}
        if edges:
            self._tell(self._sink.edges, edges, "what values were computed from was not kept")
        if header:
            self._tell(self._sink.header, header, "what the run's header gained was not kept")

    def _tell(self, say: Callable[[Any], None], what: Any, lost: str) -> None:
        try:
            say(what)
        except Exception as fault:  # noqa: BLE001  # the sink boundary; the records are safe
            self._warn_once(lost, f"{lost}: {fault}")

    # -- both sides

    def _count_gap(  # noqa: PLR0913  # the fields of a Gap
        self, name: str, kind: str, mode: str, reason: str, count: int, first: int, last: int
    ) -> None:
        told = statable(Gap(name, kind, mode, reason, count, first, last))
        key = (told.name, told.kind, told.mode, told.reason)
        count, first, last = told.count, told.first_step, told.last_step
        old = self._gaps.get(key)
        if old is not None:
            count, first, last = (
                old.count + count,
                min(old.first_step, first),
                max(old.last_step, last),
            )
        self._gaps[key] = Gap(*key, count, first, last)

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._logged:
            self._logged.add(key)
            _log.warning("anchorlib: %s", message)


def _summaries(batch: list[Deferred]) -> list[Summary | None]:
    """The summary of each item that needs one; None where it is to make its own."""
    try:
        arrays = [item.storage() for item in batch]
        found = iter(summarise_all([array for array in arrays if array is not None]))
    except Exception:  # noqa: BLE001  # each by itself then: one that is bad must not cost the others
        return [None] * len(batch)
    return [None if array is None else next(found) for array in arrays]
