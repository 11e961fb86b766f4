"""Entries of a rank's log of operations, as JSON.

    {"structure": "9f…", "ops": [{"op": "aten.tanh.default", "stage": "forward", …}, …]}
    {"row": {"step": 0, "first": 0, "passes": [0, …], "structure": "9f…",
             "digests": "base64", "floats": ["0.1"]}, "attempt": 0}
    {"gap": {"reason": "…", "count": 1, "first_step": 0, "last_step": 0}, "attempt": 0}

A structure describes some consecutive operations without their values. It is stated once, under its
hash, however often the operations run. A row says that the operations of a structure ran, and holds
their digests and the numbers among their arguments; "first" is the index, in the step, of the
structure's first operation. A gap says that something was not traced, and why. The attempt is the
number of the rank's recording, from 0. Fields of an entry that are not named here are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

__all__ = ["Entry", "check_entry", "entry_key", "gap_entry"]

Entry: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[Any, ...]

_HASH: Final = re.compile(r"[0-9a-f]{32}")
_MOST: Final = (1 << 63) - 1


def entry_key(entry: Entry) -> Key:
    """Return the identity of an entry of the log of operations.

    Of several entries with one identity, readers take the first. A structure is identified by its
    hash; a row by attempt, step and first operation; a gap by attempt, reason and count, since a
    later gap of the same reason states a new total. Raises ValueError, KeyError or TypeError for a
    mapping that is no entry.
    """
    if "structure" in entry:
        return ("structure", _hash(entry["structure"]))
    attempt = whole(entry.get("attempt", 0))
    if "row" in entry:
        row = entry["row"]
        return ("row", attempt, whole(row["step"]), whole(row["first"]))
    gap = entry["gap"]
    return ("gap", attempt, _text(gap["reason"]), whole(gap["count"]))


def check_entry(entry: Any) -> Entry:
    """Return `entry` if it is a well-formed entry of a log of operations; else raise ValueError."""
    try:
        if not isinstance(entry, dict):
            raise TypeError("the entry is no JSON object")
        kind = entry_key(entry)[0]
        if kind == "structure" and not isinstance(entry["ops"], list):
            raise TypeError("its operations are no list")
        if kind == "row":
            _hash(entry["row"]["structure"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an entry of the operations' log is malformed: {error!r}") from error
    return entry


def gap_entry(reason: str, count: int, first_step: int, last_step: int) -> Entry:
    """Return the log entry that says how often something could not be traced, for one reason.

    count: how often it happened so far.
    first_step, last_step: the steps in which it happened first and last.
    """
    gap = {"reason": reason, "count": count, "first_step": first_step, "last_step": last_step}
    return {"gap": gap}


def whole(value: Any, least: int = 0) -> int:
    """Return `value` if it is a whole number of at least `least` that fits in a signed int64.

    Raises TypeError or ValueError for anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    if not least <= value <= _MOST:
        raise ValueError(f"{value} is out of range")
    return value


def _hash(value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError("the structure's hash is not 32 hex digits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
