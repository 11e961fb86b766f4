"""Operations that could not be traced, as their log states them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anchorlib.operations.entries import Entry, whole

__all__ = ["OpGap", "gaps_of"]


@dataclass(frozen=True, slots=True)
class OpGap:
    """Steps of which operations were not traced, or not all, and why."""

    reason: str
    count: int
    first_step: int
    last_step: int


def gaps_of(entries: Iterable[Entry]) -> list[OpGap]:
    """What could not be traced; of each attempt and reason the last total counts.

    Raises ValueError, KeyError, TypeError for what no writer states.
    """
    found: dict[tuple[int, str], OpGap] = {}
    for entry in entries:
        if "gap" in entry:
            gap = entry["gap"]
            reason = str(gap["reason"])
            steps = whole(gap["first_step"]), whole(gap["last_step"])
            found[whole(entry.get("attempt", 0)), reason] = OpGap(
                reason, whole(gap["count"]), *steps
            )
    return list(found.values())
