"""Writes a rank's log of traced operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from anchorlib.operations import Entry, entry_key, gap_entry
from anchorlib.store.disk import NodeWriter, RankQuota
from anchorlib.store.format import encode, group_json, stamp
from anchorlib.store.locations import LocalLocation
from anchorlib.store.stored import LOG, operation_entries
from anchorlib.store.write.publishing import catalogue_json
from anchorlib.store.write.table import CatalogFile

__all__ = ["OperationFile"]

LOG_BYTES: Final = 256 << 20  # most bytes of one rank's log
LEFT_OUT: Final = "operations for which there was no room"
_LINE_BYTES: Final = 8 << 20


class OperationFile:
    """Adds entries, each only once, to the log of traced operations of one rank.

    rank: the rank's directory. tree: makes the log's zarr array. budget: counts the bytes, and says
        whether there is room. Entries for which there is no room are counted in the log as a gap.
    """

    def __init__(self, rank: Path, tree: NodeWriter, budget: RankQuota) -> None:
        self._rank = rank
        self._tree = tree
        self._budget = budget
        self._file: CatalogFile | None = None
        self._known: set[int] = set()
        self._left_out = self._stated = 0
        self._attempt = 0
        self._published = -1

    def add(self, entries: Sequence[Entry], attempt: int) -> None:
        """Write those entries that the log does not have, marked with the number of the attempt.

        Entries for which there is no room are left out and counted. Raises OSError (ENOSPC) where
        the disk is full and the writer was opened with `wait_for_room`.
        """
        if not entries:
            return
        file = self._opened()
        self._attempt = attempt
        fresh = b"".join([self._line(entry, attempt) for entry in entries])
        if self._left_out >= 2 * self._stated:
            fresh += self._gap(attempt)
        if fresh:
            file.append(fresh)
            self._budget.spend(len(fresh))

    def _gap(self, attempt: int) -> bytes:
        """Return a log line with the count of entries left out; b"" if the log has that count.

        The returned line is taken as written: until the count grows, the next result is b"".
        """
        if self._left_out == self._stated:
            return b""
        self._stated = self._left_out
        return encode({**gap_entry(LEFT_OUT, self._left_out, 0, 0), "attempt": attempt})

    def _line(self, entry: Entry, attempt: int) -> bytes:
        stamped = entry if "structure" in entry else {**entry, "attempt": attempt}
        key = hash(entry_key(stamped))
        if key in self._known:
            return b""
        line = encode(stamped)
        end = self._opened().end + len(line)
        # `max_bytes` leaves out values alone: operations are still written beyond it.
        refused = self._budget.refusal(len(line)) not in (None, "max_bytes")
        if refused or end > LOG_BYTES or len(line) > _LINE_BYTES:
            self._left_out += 1
            return b""
        self._known.add(key)
        return line

    def _opened(self) -> CatalogFile:
        if self._file is None:
            entries, end = operation_entries(LocalLocation(self._rank))
            if not end:
                self._tree.make(self._rank / "ops", group_json(stamp()))
                self._tree.make(self._rank / LOG, catalogue_json(0))
            self._known = {hash(entry_key(entry)) for entry in entries}
            self._file = CatalogFile(self._rank / LOG, end, self._tree)
            if end:
                self._file.erase_rest()
        return self._file

    def publish(self) -> None:
        """Write the count of entries left out, and the log's length for other zarr readers.

        Does nothing where `add` was never called with an entry.
        """
        if self._file is not None:
            self._file.append(self._gap(self._attempt))
        if self._file is not None and self._file.end != self._published:
            self._tree.replace(self._rank / LOG, catalogue_json(self._file.end))
            self._published = self._file.end

    def close(self) -> None:
        """Close the log's file, if it was ever opened."""
        if self._file is not None:
            self._file.close()
