"""Entries of a rank's log of operations, as JSON.

    {"structure": "9f…", "ops": [{"op": "aten.tanh.default", "stage": "forward", …}, …]}
    {"row": {"step": 0, "first": 0, "passes": [0, …], "structure": "9f…",
             "digests": "base64", "floats": ["0.1"]}, "attempt": 0}
    {"gap": {"reason": "…", "count": 1, "first_step": 0, "last_step": 0}, "attempt": 0}

A structure is what some operations that follow each other are, whatever their values: it is stated
once, under its hash, however often they run. A row says that they ran, with their digests and with
the numbers among their arguments. Whatever else an entry has is left alone.
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
    """What an entry states something about; of two with one key the first counts, of gaps the last.

    Raises ValueError, KeyError or TypeError for what is no entry.
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
    """`entry` itself. Raises ValueError for what no writer of a log states."""
    try:
        if not isinstance(entry, dict):
            raise TypeError("it is no JSON object")
        kind = entry_key(entry)[0]
        if kind == "structure" and not isinstance(entry["ops"], list):
            raise TypeError("its operations are no list")
        if kind == "row":
            _hash(entry["row"]["structure"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an entry of the operations' log is none: {error!r}") from error
    return entry


def gap_entry(reason: str, count: int, first_step: int, last_step: int) -> Entry:
    """The entry of operations that could not be traced: the total so far of one reason."""
    told = {"reason": reason, "count": count, "first_step": first_step, "last_step": last_step}
    return {"gap": told}


def whole(value: Any, least: int = 0) -> int:
    """`value`, a whole number. Raises TypeError, ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    if not least <= value <= _MOST:
        raise ValueError(f"{value} is out of range")
    return value


def _hash(value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError("its hash is none")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
