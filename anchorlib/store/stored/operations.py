"""The log of a rank's traced operations: JSON lines that are only ever appended.

    rank<r>/ops/log        uint8, lines like those of the catalogue, each with its checksum

The log is made with its first entry, so a rank without traced operations has none. Readers that do
not know the log ignore it. `anchorlib.operations` says what the entries mean.
"""

from __future__ import annotations

import json
from typing import Any, Final

from anchorlib.errors import DamagedError
from anchorlib.operations import Entry, check_entry
from anchorlib.store.format import CATALOG_CHUNK, check_depth, chunk_key, is_sound, whole_lines
from anchorlib.store.locations import Location

__all__ = ["LOG", "operation_entries"]

LOG: Final = "ops/log"


def operation_entries(rank: Location) -> tuple[list[Entry], int]:
    """Read the log of operations of a rank; return its entries and its length in bytes.

    The length counts complete lines alone. Without a log the result is ([], 0). Raises DamagedError
    for a line that does not fit its checksum or holds no valid entry.
    """
    entries: list[Entry] = []
    rest, end, chunk = b"", 0, 0
    while part := rank.get(f"{LOG}/{chunk_key(chunk, 0)}", 0, CATALOG_CHUNK):
        rest += part
        lines, taken = whole_lines(rest)
        entries += map(_entry, lines)
        rest, end, chunk = rest[taken:], end + taken, chunk + 1
        if b"\0" in rest:
            break
    return entries, end


def _entry(line: bytes) -> Entry:
    try:
        if not is_sound(line):
            raise ValueError("it does not fit its checksum")
        entry: Any = json.loads(line)
        check_depth(entry)
        return check_entry(entry)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(
            f"the log of operations is damaged at {line[:60]!r}: {error}; the records of the run "
            "can be read all the same"
        ) from error
