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
    """Steps in which something of the operations was not traced, and why.

    reason: why, as a text for people.
    count: how often something was not traced for this reason.
    first_step, last_step: the first and the last step in which this happened.
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

    There is one gap for each attempt (recording of the rank) and reason, with the last total that
    was stated. Raises ValueError, KeyError or TypeError for a malformed entry.

    entries: the entries of a rank's log, in their order.
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
