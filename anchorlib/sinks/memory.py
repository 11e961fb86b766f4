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
    """Keeps records, gaps, lineage, header entries and traced operations in attributes.

    These are `records`, `gaps`, `lineage`, `entries` and `traced`; `closed` says whether `close`
    was called.
    """

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
        """Append copies of the block's records, as its memory is valid during the call only.

        Raises StoreError after `revoke`.
        """
        if self._revoked:
            raise StoreError("this sink was revoked: nothing more is kept")
        self.records += [
            record if record.raw is None else replace(record, raw=record.raw.copy())
            for record in records_of(block)
        ]

    def gap(self, gaps: Sequence[Gap]) -> None:
        """Keep the newest gap (what was not recorded, and why) of each series and reason."""
        newest = {(g.name, g.kind, g.mode, g.reason): g for g in (*self.gaps, *gaps)}
        self.gaps = list(newest.values())

    def edges(self, edges: Sequence[Edges]) -> None:
        """Append lineage: which tensors and operations each value was computed from."""
        self.lineage += edges

    def header(self, entries: Mapping[str, Any]) -> None:
        """Keep entries of the run header; a newer entry replaces an older one."""
        self.entries |= entries

    def operations(self, entries: Sequence[Entry]) -> None:
        """Append entries of the log of traced operations."""
        self.traced += entries

    def flush(self) -> Flushing:
        """Return a flush that is finished already: records are in the lists at once."""
        return DONE

    def close(self, timeout: float) -> int:  # noqa: ARG002  # nothing waits
        """Set `closed`, and return 0: no record is lost."""
        self.closed = True
        return 0

    def revoke(self) -> None:
        """Make each later `put` raise StoreError."""
        self._revoked = True
