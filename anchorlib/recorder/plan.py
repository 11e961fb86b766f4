"""What a recorder process is started with: a document in memory that it inherits."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchorlib.block import RowBlock
from anchorlib.sinks import EmbeddedSink, MemorySink, RunOptions, Sink, open_sink, open_writer
from anchorlib.store import RankLock

__all__ = ["Plan", "in_memory", "open_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where records go, and how to go on where another recorder ended.

    payload: the ring's. writer: the secret of this rank's writer, in hex.
    definitions: those in slots that were consumed already, in order.
    """

    store: str
    options: RunOptions
    payload: int
    writer: str
    definitions: tuple[str, ...] = ()

    def document(self) -> bytes:
        """As it travels."""
        return json.dumps(asdict(self), default=str).encode()

    @classmethod
    def read(cls, descriptor: int) -> Plan:
        """The plan in the memory of `descriptor`, which is closed."""
        with os.fdopen(descriptor, "rb") as file:
            told: dict[str, Any] = json.load(file)
        options = RunOptions(**told.pop("options"))
        return cls(**{**told, "options": options, "definitions": tuple(told["definitions"])})


class Unopened(MemorySink):
    """What stands in for a sink that could not be opened again: it takes nothing."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault

    def put(self, block: RowBlock) -> None:  # noqa: ARG002  # none is taken
        """Raises what kept the sink from being opened."""
        raise self._fault


def open_plan(plan: Plan, lock: RankLock | None) -> tuple[Sink, int | None]:
    """The sink of a plan, and how many records it has already (None: none). Raises nothing.

    lock: of the rank, held already; None for a collector's.
    """
    try:
        if lock is None:
            return open_sink(plan.store, plan.options), None
        writer = open_writer(Path(plan.store), plan.options, bytes.fromhex(plan.writer), lock)
    except Exception as fault:  # noqa: BLE001  # each record then says why it was lost
        return Unopened(fault), None
    return EmbeddedSink(writer), writer.committed


def in_memory(document: bytes) -> int:
    """A descriptor from which a child can read `document`. Raises OSError."""
    descriptor = os.memfd_create("anchor-plan", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, document)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
