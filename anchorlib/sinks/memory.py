"""A sink that keeps what it is given: for tests, and for trying things out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anchorlib.block import RowBlock, records_of
from anchorlib.errors import StoreError
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap, Record
from anchorlib.sinks.base import DONE, Flushing

__all__ = ["MemorySink"]


class MemorySink:
    """Records in a list."""

    dropped = 0
    lost = 0
    dropped_bytes = 0
    own_gaps = 0
    retries = 0
    waiting = 0

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.gaps: list[Gap] = []
        self.lineage: list[Edges] = []
        self.entries: dict[str, Any] = {}
        self.traced: list[Entry] = []
        self.closed = False
        self._revoked = False

    def put(self, block: RowBlock) -> None:
        """Keep copies: the values of a block are valid during the call only."""
        if self._revoked:
            raise StoreError("this sink was revoked: nothing more is kept")
        self.records += [
            record if record.raw is None else replace(record, raw=record.raw.copy())
            for record in records_of(block)
        ]

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Keep the newest statement of each series and reason."""
        newest = {(g.name, g.kind, g.mode, g.reason): g for g in (*self.gaps, *gaps)}
        self.gaps = list(newest.values())

    def edges(self, edges: Sequence[Edges]) -> None:
        """Keep them, in order."""
        self.lineage += edges

    def header(self, entries: Mapping[str, Any]) -> None:
        """Keep the newest of each."""
        self.entries |= entries

    def operations(self, entries: Sequence[Entry]) -> None:
        """Keep them, in order."""
        self.traced += entries

    def flush(self) -> Flushing:
        """Nothing waits here."""
        return DONE

    def close(self, timeout: float) -> int:  # noqa: ARG002  # nothing waits
        """Everything was delivered."""
        self.closed = True
        return 0

    def revoke(self) -> None:
        """Nothing more is kept."""
        self._revoked = True
