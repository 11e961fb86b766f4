"""The sink that keeps everything in lists: for tests, and to try things out."""

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
    """Keeps records, gaps, lineage, header entries and traced operations in attributes."""

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
        """Keep copies of the records: the values of a block are valid during the call only."""
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
        """Keep lineage, in order."""
        self.lineage += edges

    def header(self, entries: Mapping[str, Any]) -> None:
        """Keep header entries; a newer entry replaces an older one."""
        self.entries |= entries

    def operations(self, entries: Sequence[Entry]) -> None:
        """Keep traced operations, in order."""
        self.traced += entries

    def flush(self) -> Flushing:
        """Returns a finished flush: records are kept at once."""
        return DONE

    def close(self, timeout: float) -> int:  # noqa: ARG002  # nothing waits
        """Note the close; no record is undelivered."""
        self.closed = True
        return 0

    def revoke(self) -> None:
        """Keep no more records."""
        self._revoked = True
