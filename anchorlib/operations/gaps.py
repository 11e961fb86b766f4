"""What could not be traced, and why, read from the log of operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from anchorlib.operations.entries import Entry, whole

__all__ = ["VALUES", "OpGap", "gaps_of"]

VALUES: Final = "values of"
"""Begins the reason of a gap where an operation was traced, and values of it were not kept."""


@dataclass(frozen=True, slots=True)
class OpGap:
    """Steps in which some or all operations were not traced, and why.

    count: how often something was not traced for this reason.
    """

    reason: str
    count: int
    first_step: int
    last_step: int

    @property
    def is_of_values(self) -> bool:
        """Whether only tensors' values are missing, while the operations themselves were traced."""
        return self.reason.startswith(VALUES)


def gaps_of(entries: Iterable[Entry]) -> list[OpGap]:
    """Return the gaps (what could not be traced, and why) that the entries of a log state.

    For each attempt (recording of the rank) and reason the last total counts. Raises ValueError,
    KeyError or TypeError for an entry that no writer states.
    """
    gaps: dict[tuple[int, str], OpGap] = {}
    for entry in entries:
        if "gap" in entry:
            gap = entry["gap"]
            reason = str(gap["reason"])
            steps = whole(gap["first_step"]), whole(gap["last_step"])
            gaps[whole(entry.get("attempt", 0)), reason] = OpGap(
                reason, whole(gap["count"]), *steps
            )
    return list(gaps.values())
