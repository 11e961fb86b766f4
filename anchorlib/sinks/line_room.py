"""The room for records that wait for a collector, and counts of what was dropped without room.

The line is all that waits between a process and its collector: in a spool (a folder of this
machine), or in memory. It is full when the spool, or the memory, holds all that it may. An eighth
of the room is kept for summaries, so that a full line loses values first and whole records last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from anchorlib.block import RowBlock
from anchorlib.record import Gap
from anchorlib.spool import WrittenSpool
from anchorlib.wire import Outbox, frame_weights

__all__ = ["LineRoom"]

_VALUES_SHARE: Final = 7 / 8  # of the room is for values; the rest is kept for summaries

# Reasons of gaps.
_VALUES_DROPPED: Final = "line full: values dropped"
_DROPPED: Final = "line full"


class LineRoom:
    """Says which records still have room, and counts those that were dropped.

    outbox: the queue of messages that wait for the collector.
    spool: the spool in which messages wait; None if they wait in memory.
    limit: the most bytes that may wait in memory; a spool has a separate limit.

    state: called with the gap statements that changed; each counts the dropped records of one
        series and reason. The caller of the methods holds the lock that `state` needs.

    dropped: how many records were lost, or kept without their values. lost: how many of the dropped
    records have not even a summary. dropped_bytes: bytes of the values that the dropped records
    had. gaps: {(name, kind, mode, reason): the gap statement}.
    """

    def __init__(
        self,
        outbox: Outbox,
        spool: WrittenSpool | None,
        limit: int,
        state: Callable[[Sequence[Gap]], None],
    ) -> None:
        self._outbox, self._spool, self._limit = outbox, spool, limit
        self._state = state
        self.dropped = self.lost = self.dropped_bytes = 0
        self.gaps: dict[tuple[str, str, str, str], Gap] = {}

    def has(self, weight: int, share: float = 1.0) -> bool:
        """Return whether `weight` more bytes fit into the share of the room that may be used.

        Where nothing waits, anything fits: otherwise a record larger than the room would never be
        sent. share: the part of the room that may be used, from 0 to 1.
        """
        # A record larger than the limit is taken alone, or it could never be sent.
        if not self._outbox.waiting:
            return True
        spool = self._spool
        if spool is None:
            return self._outbox.nbytes + weight <= self._limit * share
        if spool.frames.spilling:
            return spool.frames.kept_bytes + weight <= self._limit * share
        return spool.nbytes + weight <= spool.limit * share

    def fitting(self, batch: RowBlock, weight: int) -> RowBlock:
        """Return as much of a batch as has room: all, the batch without values, or an empty batch.

        Records that lose their values, or are left out, are counted as dropped and stated as gaps.
        weight: the bytes that the whole batch takes.
        """
        if self.has(weight, _VALUES_SHARE):
            return batch
        bare = batch.without_values(np.ones(len(batch), bool))
        if not self.has(int(frame_weights(bare).sum())):
            self.lose(batch, _DROPPED)
            return batch.nothing()
        kept = batch.only(batch.kept)
        self.dropped_bytes += int(kept.sizes.sum())
        self._count(kept, _VALUES_DROPPED)
        return bare

    def lose(self, batch: RowBlock, reason: str) -> None:
        """Count the records of a batch as lost, with their summaries, and state gaps for `reason`.

        The caller has to leave the records out.
        """
        self.lost += len(batch)
        self.dropped_bytes += int(batch.sizes.sum())
        self._count(batch, reason)

    def _count(self, batch: RowBlock, reason: str) -> None:
        self.dropped += len(batch)
        counted: dict[tuple[str, str, str, str], Gap] = {}
        for series, step in zip(batch.names, batch.columns["step"].tolist(), strict=True):
            key = (*series, reason)
            old = self.gaps.get(key) or Gap(*key, 0, step, step)
            self.gaps[key] = counted[key] = replace(
                old,
                count=old.count + 1,
                first_step=min(old.first_step, step),
                last_step=max(old.last_step, step),
            )
        self._state(list(counted.values()))
