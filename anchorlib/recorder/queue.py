"""The bounded queue between the training threads and a drain: the trainer's side of the ring.

training threads ── records, gap, edges, … ──▶ ring ── drain ──▶ block ──▶ sink
                 ── flush, close ─────────────────────────▶
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, Final

from anchorlib.errors import AnchorError, FlushTimeoutError
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap
from anchorlib.recorder.copies import Copier, Copies
from anchorlib.recorder.layout import Word
from anchorlib.recorder.lost_records import LostRecords
from anchorlib.recorder.record_placer import RecordPlacer
from anchorlib.recorder.ring import Producer, Ring, aligned
from anchorlib.recorder.statement_placer import STATEMENT_BYTES, StatementPlacer
from anchorlib.recorder.statements import PendingStatements
from anchorlib.recorder.worker import Worker
from anchorlib.sinks import OnFull, check_edges, statable

if TYPE_CHECKING:
    from anchorlib.recorder._put import Putter

__all__ = ["RecordQueue", "ring_size"]

# How long `close` waits past its timeout: for the batch that is being written then; and, after the
# sink was revoked, for its present operation.
_BATCH_SECONDS: Final = 1.0
_OPERATION_SECONDS: Final = 15.0
_BEGIN_SECONDS: Final = 10.0


def ring_size(limit_bytes: int) -> int:
    """Return how many bytes a ring needs for payload if at most `limit_bytes` of values may wait.

    Definitions and statements get further room, in addition to that for values.
    """
    return aligned(limit_bytes) + STATEMENT_BYTES


class RecordQueue:
    """Takes records and statements into `ring`, which `worker` empties into the sink.

    limit_bytes: the most bytes of values that may wait. A single record that is larger is still
        recorded, while no other waits.
    on_full: what is done with a record for which the queue has no room: "block", "drop" or "raise"
        (see `RecordPlacer`).

    records: places the records.
    lock: guards the queue; a thread may hold it while it makes records. A thread that has put a
        record whose values come later has to call `fill` after it has released the lock.
    putter: the compiled code that places ordinary records; None where there is no compiled code,
        and after `close`.
    """

    def __init__(self, ring: Ring, worker: Worker, *, limit_bytes: int, on_full: OnFull) -> None:
        self._ring, self._worker = ring, worker
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.putter: Putter | None = None
        self._statements = PendingStatements()
        self._losses = LostRecords(self._statements, worker.warn)
        self._copies = Copies(ring, self._warn_not_copied)
        self._copier: Copier | None = None
        self._stuck = 0  # records lost behind an operation of the store that never ended
        producer = Producer(ring)
        self._placer = StatementPlacer(
            ring,
            producer,
            worker,
            self._statements,
            self._losses,
            lambda: on_full == "block" and not self.records.is_over,
            self._wait,
        )
        self.records = RecordPlacer(
            ring,
            producer,
            worker,
            self._copies,
            self._losses,
            self._placer.kept,
            self._changed,
            limit_bytes=limit_bytes,
            on_full=on_full,
        )

    def _wait(self) -> None:
        self.records.wait()

    def put_by(self, make: Callable[[Ring, int], Putter | None]) -> None:
        """Set `putter` to the result of make(ring, bytes of payload that records may use)."""
        self.putter = make(self._ring, self.records.room)

    def copy_by(self, make: Callable[[Ring, Callable[[str], None]], Copier]) -> Copier:
        """Return the copier that `make` makes of the ring and of a function that logs a warning.

        A copier brings values from a GPU into the ring. `close` of the queue closes the copier.
        """
        self._copier = make(self._ring, self._worker.warn)
        return self._copier

    def fill(self) -> None:
        """Begin to copy the values of records that this thread has put with a `Later` source.

        Does not wait for the copies. The caller must not hold `lock`.
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
        """Return the stream number for `records.put`, which stands for a series in one phase.

        A new stream is first defined in the ring; the result is -1 if the ring has no room for the
        definition.

        keeps: whether the series' mode keeps values.
        """
        with self.lock:
            return self._placer.stream((name, kind, mode, phase), keeps=keeps)

    def layout(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Return the layout number for `records.put`, which stands for a dtype and shape.

        A new layout is first defined in the ring; the result is -1 if the ring has no room for the
        definition.
        """
        with self.lock:
            return self._placer.layout(dtype, shape)

    # -- statements

    def gap(self, gap: Gap) -> None:
        """Count observations that never became records, and queue them as a gap for the sink."""
        with self.lock:
            self._statements.gap(statable(gap))
            self._placer.place_statements_if_due()

    def edges(self, edges: Edges) -> None:
        """Queue lineage for the sink: which tensors and operations a value was computed from.

        Lineage that no store can hold is left out, with a warning.
        """
        try:
            check_edges(edges)
        except AnchorError as fault:
            self._losses.warn_once("edges", f"what a value was computed from was not kept: {fault}")
            return
        with self.lock:
            self._statements.edges(edges)
            self._placer.place_statements_if_due()

    def header(self, entries: Mapping[str, object]) -> None:
        """Queue entries of the run's header for the sink."""
        with self.lock:
            self._statements.header(entries)
            self._placer.place_statements_if_due()

    def operations(self, entries: Sequence[Entry]) -> None:
        """Queue entries of the log of traced operations for the sink."""
        with self.lock:
            self._statements.operations(entries)
            self._placer.place_statements_if_due()

    # -- waiting for the drain

    def flush(self, timeout: float | None = None) -> None:
        """Block until all records so far are in the store and visible to any reader.

        Returns at once where the queue is closing or closed. Raises FlushTimeoutError after
        `timeout` seconds or where the queue is closed meanwhile, and other errors of anchorlib that
        the sink raises; any other exception is only logged.

        timeout: seconds; None waits as long as it takes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            if self.records.closing:
                return
            self._placer.place_statements(timeout)
            target = self.records.taken
            answer = self._worker.request("flush", self._ring[Word.PUBLISHED], timeout)
        self._copies.watch(answer, timeout)
        try:
            flushing = answer.result(_left(deadline))
            if not isinstance(flushing, int):
                flushing.wait(_left(deadline))
        except AnchorError:
            raise
        except (Late, CancelledError):
            ended = "the session closed" if timeout is None else f"{timeout:g} s"
            raise FlushTimeoutError(
                f"{target - self._ring[Word.RECORDS]} records still wait after {ended}; "
                "call flush again, or with a longer timeout"
            ) from None
        except Exception as fault:  # noqa: BLE001  # a store's fault must not end training
            self._losses.warn_once(f"flush:{type(fault).__name__}", f"flush failed: {fault}")

    def close(self, timeout: float) -> int:
        """Empty the ring, close the sink, end the worker; return how many records this has lost.

        Records that are not stored within `timeout` seconds are lost; their number is returned.
        Records that come later, too, are counted as lost, in `lost`. Blocks, also somewhat longer
        than `timeout`; nothing is written after `close` has returned.
        """
        self._worker.ready.wait(_BEGIN_SECONDS)  # a run may be shorter than a recorder's start
        with self.lock:
            self.records.refuse()
            self.putter = None
            self._changed.notify_all()
            self._placer.place_statements(timeout)
            answer = self._worker.request("close", self._ring[Word.PUBLISHED], timeout)
        deadline = time.monotonic() + timeout + _BATCH_SECONDS
        self._copies.watch(answer, timeout + _BATCH_SECONDS)
        if not wait([answer], _left(deadline)).done:
            self._worker.revoke()
            if not wait([answer], _OPERATION_SECONDS).done:
                self._give_up()
        self._worker.end()
        is_still = self._copier is None or self._copier.close()
        if answer.cancelled():
            self._stuck = self.records.taken - self._ring[Word.RECORDS]
            return self._stuck
        if is_still:
            self._ring.give_back()
        return int(answer.result())

    def _give_up(self) -> None:
        """Cancel all requests, as the store hangs; the records that wait are lost."""
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
        """How many records have left the ring, handed to the sink or counted as lost."""
        return self._ring[Word.RECORDS]

    @property
    def waiting(self) -> int:
        """How many records wait: not yet in the store, or not acknowledged by the collector."""
        return self.records.taken - self.handed_over + self._ring[Word.WAITING]

    @property
    def retries(self) -> int:
        """How often the sink tried again to deliver records, after a failure."""
        return self._ring[Word.RETRIES]

    @property
    def lost(self) -> int:
        """How many records were lost, summary included: in the queue, the sink, or between them."""
        return self._losses.records + self._stuck + self._ring[Word.LOST]

    @property
    def dropped(self) -> int:
        """How many records were lost, or kept with their summary alone."""
        return self.lost + self._ring[Word.SUMMARY_ONLY]

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the values that dropped records had."""
        return self._losses.nbytes + self._ring[Word.LOST_BYTES]


def _left(deadline: float | None) -> float | None:
    """Return the seconds until `deadline` (monotonic), at least 0; None if there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
