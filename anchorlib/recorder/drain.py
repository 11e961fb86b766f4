"""The drain: it reads slots of the ring, puts records into blocks of columns, and feeds the sink.

One thread calls a drain, in the trainer or in the recorder process, and only the drain calls the
sink. Where the sink raises, the records are counted as lost and stated as a gap, and one warning is
logged; the exception goes no further.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from anchorlib.block import Buffer, RowBlock
from anchorlib.recorder.definitions import Definitions
from anchorlib.recorder.drain_requests import Host, Request, RequestQueue
from anchorlib.recorder.layout import KIND_SHIFT, VOID, SlotKind, Word
from anchorlib.recorder.lost_records import LATE, NEVER, LostRecords
from anchorlib.recorder.ring import Ring, aligned
from anchorlib.recorder.slot_records import SlotRecords
from anchorlib.recorder.statement_json import edges_of, gaps_of, operations_of
from anchorlib.recorder.statements import PendingStatements
from anchorlib.sinks import Admission, Sink

__all__ = ["Drain", "PredecessorState"]

Array: TypeAlias = np.ndarray[Any, Any]

_BATCH_SLOTS: Final = 2048
_BATCH_BYTES: Final = 8 << 20
_POLL_SECONDS: Final = 0.01
_SOON_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class PredecessorState:
    """What earlier drains of a ring, which have died, left for the next drain of the same ring.

    definitions: the definitions (of series and so on) in the slots that were consumed.
    drains: how many drains of this ring there were before.

    ahead: how many records, counted from the first slot that is not consumed, a sink has already;
        they must not be put again.

    lost: how many records waited for a collector in the memory of a drain that has died, and are
        lost with this drain.
    """

    definitions: Definitions = field(default_factory=Definitions)
    drains: int = 0
    ahead: int = 0
    lost: int = 0


class Drain:
    """Empties `ring` into `sink`: makes blocks of the records, and hands them over.

    host: answers the trainer, logs, and gives access to memory outside the ring.
    predecessor: the state that earlier drains of the ring left; None for the first drain.

    done: how many slots of the ring (records and statements) are consumed.
    requests: the trainer's requests (flush, close) that are to be carried out.
    closed: whether the sink is closed.
    """

    def __init__(
        self, ring: Ring, sink: Sink, host: Host, predecessor: PredecessorState | None = None
    ) -> None:
        predecessor = predecessor or PredecessorState()
        self._ring, self._sink, self._host = ring, sink, host
        self._definitions = predecessor.definitions
        self._slots = SlotRecords(ring, host, self._definitions)
        self.done, self._freed, self._records, self._stored, *_ = ring.mark()
        self._ahead, self._number, self._own = predecessor.ahead, predecessor.drains, 0
        self._admission = Admission()
        self._statements = PendingStatements()
        self._losses = LostRecords(self._statements, host.warn)
        self.requests = RequestQueue()
        self.closed = False
        self._revoked = False
        self._forsaken = False  # the trainer has died, so missing values never come
        self._awaits = False  # the next slot has no values yet
        self._late = 0  # records lost because the session closed before they were stored
        if predecessor.drains:
            self._count_on(predecessor.lost)
        self._mark()

    def _count_on(self, lost: int) -> None:
        """Continue the counts of losses that earlier drains have left in the ring.

        Those counts include what sinks have lost. Losses that this drain's sink counts itself are
        subtracted here, as `_show_counters` adds them again.

        lost: records lost with the earlier drains that the counts in the ring do not include.
        """
        ring, sink, losses = self._ring, self._sink, self._losses
        losses.records = max(0, ring[Word.LOST] - sink.lost) + lost
        losses.summary_only = max(0, ring[Word.SUMMARY_ONLY] - (sink.dropped - sink.lost))
        losses.nbytes = max(0, ring[Word.LOST_BYTES] - sink.dropped_bytes)

    def revoke(self) -> None:
        """Make the sink store nothing more: records that the sink does not have yet are lost.

        Any thread may call this.
        """
        self._revoked = True
        self._sink.revoke()

    def work(self) -> None:
        """Hand all records that are complete in the ring to the sink, then answer due requests.

        Does not wait for further records. Raises nothing that the sink raises.
        """
        busy = True
        while not self.closed and busy:
            busy = self._turn()
            request = self.requests.due(self.done)
            if busy or request is not None:
                self._hand_over_statements(again=request is not None)
            self._show_counters()
            if request is not None:
                self._answer(request)
                busy = True  # another request may be due

    def patience(self, seconds: float) -> float:
        """Return how many seconds to wait until `work` is called again, at most `seconds`.

        It is a short time while a slot's values are still being copied from a device.
        """
        return min(seconds, _SOON_SECONDS) if self._awaits else seconds

    def forsake(self) -> None:
        """Note that the trainer has died, so that `work` does not wait for missing values."""
        self._forsaken = True

    def leave(self, timeout: float) -> None:
        """Flush the sink after the trainer's death, and leave the run unlocked but not closed.

        Blocks until the records are stored, or `timeout` has passed. Raises nothing.

        timeout: how many seconds records may take to reach a collector.
        """
        end = time.monotonic() + timeout
        try:
            self._sink.flush().wait(timeout)
            while self._sink.waiting and time.monotonic() < end:  # published, and not yet confirmed
                time.sleep(_POLL_SECONDS)
        except Exception as fault:  # noqa: BLE001  # nobody is left to raise it to
            self._losses.warn_once("left", f"not all that a dead trainer left was stored: {fault}")
        self.revoke()
        with suppress(Exception):
            self._sink.close(0)
        self.closed = True

    # -- records

    def _turn(self) -> bool:
        """Process one batch of the ring's slots; return whether any slot was ready."""
        heads = self._batch()
        if not len(heads):
            return False
        kinds = heads["flags"] >> KIND_SHIFT
        for text in self._slots.values(heads[kinds == SlotKind.STATEMENT]):
            try:
                self._read_statement(text)
            except Exception as fault:  # noqa: BLE001  # it would end every following drain too
                self._losses.warn_once("told", f"a statement could not be read: {fault}")
        records = heads[kinds != SlotKind.STATEMENT]
        void = records["seq"] >= VOID
        if void.any():
            self._lose_void(records[void])
        whole = records[~void]
        if len(whole):
            self._deliver(whole)
        inside = heads[kinds != SlotKind.OUTSIDE]
        if len(inside):
            last = inside[-1]
            self._freed = int(last["pos"]) + aligned(int(last["nbytes"]))
        self.done += len(heads)
        self._records += len(records)
        self._mark()
        for number in heads["pos"][kinds == SlotKind.OUTSIDE].tolist():
            self._host.give_back(number)
        return True

    def _mark(self) -> None:
        counted = (self._records, self._stored, self._ahead, self._number, self._own)
        self._ring.advance((self.done, self._freed, *counted))

    def _batch(self) -> Array:
        """Return copies of the next slots, up to the first one whose values may still come.

        They are at most 2048 slots, with about 8 MiB of values, and end where the next request
        (a flush or the close) is due. The result is empty if no slot is ready.
        """
        ring = self._ring
        at = self.done % ring.slot_count
        request = self.requests.next
        end = ring[Word.PUBLISHED] if request is None else max(request.after, self.done)
        count = min(end - self.done, _BATCH_SLOTS, ring.slot_count - at)
        slots = ring.slots[at : at + max(0, count)]
        seqs = slots["seq"].copy()  # read first: a slot's other fields are written before its seq
        heads = slots.copy()
        cut = int(np.searchsorted(np.cumsum(heads["nbytes"]), _BATCH_BYTES)) + 1
        heads, seqs = heads[:cut], seqs[:cut]
        expected = np.arange(self.done + 1, self.done + 1 + len(heads), dtype=np.uint64)
        self._awaits = False
        return heads if (seqs == expected).all() else self._settled(heads, seqs, expected)

    def _settled(self, heads: Array, seqs: Array, expected: Array) -> Array:
        """Return `heads` up to the first slot whose values may still come.

        In the result, `seq` is `VOID` for slots whose values never come.

        heads: copies of slots (fixed-size entries of the ring).
        seqs: the field `seq` of each slot, read before the copies were made.
        expected: the `seq` that each slot has once its values are there.
        """
        there = seqs == expected
        settled = there | (seqs == expected | np.uint64(VOID))
        if not (settled.all() or self._forsaken or self._is_late()):
            self._awaits = True
            first = int(np.argmin(settled))
            heads, there, expected = heads[:first], there[:first], expected[:first]
        heads["seq"] = np.where(there, expected, np.uint64(VOID))
        return heads

    def _read_statement(self, text: Buffer) -> None:
        statement = json.loads(bytes(text))
        if self._definitions.define(statement):
            return
        for gap in gaps_of(statement):
            self._statements.total(gap)
        for edges in edges_of(statement):
            self._statements.edges(edges)
        self._statements.header(statement["header"])
        self._statements.operations(operations_of(statement))

    def _deliver(self, heads: Array) -> None:
        if self._is_late():
            self._lose_late(heads)
            return
        try:
            block = self._admission.admit(self._slots.block(heads))
        except Exception as fault:  # noqa: BLE001  # records are tried singly: one fails alone
            if len(heads) == 1:
                self._losses.lose_by(self._slots.named(heads), fault)
                return
            for at in range(len(heads)):
                self._deliver(heads[at : at + 1])
        else:
            self._put(block, heads)

    def _lose_late(self, heads: Array) -> None:
        self._late += len(heads)
        for series, step, nbytes in self._slots.named(heads):
            self._losses.lose(series, step, nbytes, LATE)

    def _lose_void(self, heads: Array) -> None:
        if self._is_late():
            self._lose_late(heads)
            return
        for series, step, nbytes in self._slots.named(heads):
            self._losses.lose(series, step, nbytes, NEVER)

    def _is_late(self) -> bool:
        closing = self.requests.closing
        return closing is not None and closing.left == 0.0

    def _put(self, block: RowBlock, heads: Array) -> None:
        """Hand a block to the sink, without the records that the sink has already.

        Where the sink raises, the block's records are counted as lost; nothing is raised here.

        heads: copies of the records' slots in the ring, one for each record of `block`.
        """
        for misfit in block.misfits:
            self._losses.leave_out(misfit)
        block = replace(block, misfits=())
        skipped = min(self._ahead, len(block))
        self._ahead -= skipped
        try:
            self._sink.put(block.only(np.arange(len(block)) >= skipped) if skipped else block)
        except Exception as fault:  # noqa: BLE001  # the sink boundary: no exception goes further
            if self._revoked:
                self._lose_late(heads)
            else:
                self._losses.lose_by(self._slots.named(heads), fault)
            return
        self._stored += len(block)
        self._own += len(block) - skipped
        summary_only = heads["flags"] >> KIND_SHIFT == SlotKind.SUMMARY_ONLY
        for series, step, nbytes in self._slots.named(heads[summary_only]):
            if nbytes:
                self._losses.lose_values(series, step, nbytes)

    # -- statements for the sink, and answers to the trainer

    def _hand_over_statements(self, *, again: bool) -> None:
        batch = self._statements.take(again=again)
        if not batch.hand_to(self._sink, self._not_kept):
            self._statements.restore_gaps(batch)

    def _not_kept(self, lost: str, fault: Exception) -> None:
        if not self._revoked:  # after `revoke`, the count that `close` returns tells of the loss
            self._losses.warn_once(lost, f"{lost}: {fault}")

    def _answer(self, request: Request) -> None:
        if request.what == "close":
            self._close(request)
            return
        try:
            flushing = self._sink.flush()
        except Exception as fault:  # noqa: BLE001  # raised or logged in the trainer's `flush`
            self._host.answer(request, fault)
        else:
            self._host.flushing(request, flushing, self._show_counters)

    def _close(self, request: Request) -> None:
        undelivered = 0
        try:
            undelivered = self._sink.close(request.left or 0.0)
        except Exception as fault:  # noqa: BLE001  # closing must not break training either
            self._losses.warn_once("close", f"the store could not be closed: {fault}")
        self.closed = True
        self._losses.records += undelivered
        self._show_counters()
        self._host.answer(request, undelivered + self._late)

    def _show_counters(self) -> None:
        """Update the counters in the ring, which the trainer reads."""
        ring, sink, losses = self._ring, self._sink, self._losses
        ring[Word.LOST] = losses.records + sink.lost
        ring[Word.SUMMARY_ONLY] = losses.summary_only + sink.dropped - sink.lost
        ring[Word.LOST_BYTES] = losses.nbytes + sink.dropped_bytes
        ring[Word.GAPS] = self._statements.gaps + sink.own_gaps
        ring[Word.WAITING] = sink.waiting
        ring[Word.RETRIES] = sink.retries
