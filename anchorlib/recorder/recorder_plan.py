"""`RecorderPlan`: what a recorder process has to know at its start, and how it opens its sink.

The trainer passes the plan as JSON, in memory that the process inherits.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anchorlib.block import RowBlock
from anchorlib.recorder.definitions import Definitions
from anchorlib.recorder.drain import PredecessorState
from anchorlib.recorder.layout import Mark, Word
from anchorlib.recorder.ring import Ring
from anchorlib.sinks import EmbeddedSink, MemorySink, RunOptions, Sink, open_writer
from anchorlib.spool import spool_place
from anchorlib.store import RankLock

__all__ = ["RecorderPlan", "in_memory", "open_plan"]


@dataclass(frozen=True, slots=True)
class RecorderPlan:
    """Where a recorder process puts records, and how it goes on after recorders that have died.

    store, options: the directory or URL, and how the rank is recorded there.
    payload: bytes of the ring's payload.
    writers: writers' secrets, in hex. For a directory, the secret of its one writer; for a
        collector, one for each recorder so far, since each recorder has a separate spool.
    drains: how many recorders there were before.
    definitions: the JSON texts of stream and layout definitions that the ring no longer holds.
    """

    store: str
    options: RunOptions
    payload: int
    writers: tuple[str, ...]
    drains: int = 0
    definitions: tuple[str, ...] = ()

    def document(self) -> bytes:
        """Return the plan as JSON, which `read` reads back."""
        return json.dumps(asdict(self), default=str).encode()

    @classmethod
    def read(cls, descriptor: int) -> RecorderPlan:
        """Read a plan from the file descriptor `descriptor`, and close it."""
        with os.fdopen(descriptor, "rb") as file:
            fields: dict[str, Any] = json.load(file)
        fields["options"] = RunOptions(**fields["options"])
        fields |= {name: tuple(fields[name]) for name in ("writers", "definitions")}
        return cls(**fields)


class Unopened(MemorySink):
    """Takes the place of a sink that could not be opened; every `put` raises the reason."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault

    def put(self, block: RowBlock) -> None:  # noqa: ARG002  # every block is refused
        """Raise the exception with which the sink failed to open."""
        raise self._fault


def open_plan(
    plan: RecorderPlan, ring: Ring, lock: RankLock | None
) -> tuple[Sink, PredecessorState]:
    """Open the sink of a plan; return it and the state that earlier drains of the ring left.

    Nothing is raised: in place of a sink that cannot be opened, the result is an `Unopened`, so
    that each record is counted as lost.

    lock: the lock of the rank's files, which is held; None where the store is a collector.
    """
    definitions = Definitions()
    for text in plan.definitions:
        definitions.define(json.loads(text))
    predecessor = PredecessorState(definitions, plan.drains)
    try:
        if lock is None:
            return _open_remote(plan, ring, predecessor)
        return _open_embedded(plan, ring, predecessor, lock)
    except Exception as fault:  # noqa: BLE001  # the reason of each record's gap
        return Unopened(fault), predecessor


def _open_embedded(
    plan: RecorderPlan, ring: Ring, predecessor: PredecessorState, lock: RankLock
) -> tuple[Sink, PredecessorState]:
    secret = bytes.fromhex(plan.writers[-1])
    writer = open_writer(Path(plan.store), plan.options, secret, lock)
    # A drain may have died after the sink's commit and before it wrote the ring's mark.
    ahead = max(0, writer.committed - ring.mark()[Mark.STORED])
    return EmbeddedSink(writer), replace(predecessor, ahead=ahead)


def _open_remote(
    plan: RecorderPlan, ring: Ring, predecessor: PredecessorState
) -> tuple[Sink, PredecessorState]:
    from anchorlib.sinks.remote import RemoteSink  # gRPC is loaded where it is used
    from anchorlib.spool import spooled_by

    options, place = plan.options, spool_place()
    if predecessor.drains:  # the spools of the earlier recorders are delivered first
        options = replace(options, resume=True, overwrite=False)
        mark = ring.mark()
        last = plan.writers[mark[Mark.DRAIN]]
        spooled = spooled_by(place, options.run, options.rank, last)
        doubt = 0 if spooled is None else max(0, spooled - mark[Mark.OWN])
        # Without a spool, records that waited in the memory of the dead process are lost.
        lost = ring[Word.WAITING] if spooled is None else 0
        predecessor = replace(predecessor, ahead=mark[Mark.AHEAD] + doubt, lost=lost)
    secret = bytes.fromhex(plan.writers[-1])
    return RemoteSink(plan.store, options, spool=place, writer_id=secret), predecessor


def in_memory(document: bytes) -> int:
    """Return a file descriptor from which a child process can read `document`.

    The bytes are in memory, in no file system. Raises OSError where there is no memory for them.
    """
    descriptor = os.memfd_create("anchor-plan", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, document)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
