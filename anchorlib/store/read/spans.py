"""Which part of a rank has which records, by their numbers; a calculation that reads nothing.

    part 0    0 ─────────── 550          550 records, of which 500 were acknowledged
    part 1               500 ────── 900
    read      0 ──────── 500 ────── 900

A session numbers its records once. Where two parts have one, it was committed and not acknowledged
before the session went on elsewhere: both have the same record, and it counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Share", "Span", "missing", "spans"]


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """The records first … end - 1 of one session, in attempt `attempt` of part `place`."""

    first: int
    end: int
    place: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Span:
    """Records first … end - 1 of a session are read from `share`."""

    share: Share
    first: int
    end: int


def spans(shares: Iterable[Share]) -> list[Span]:
    """What is read from where: records of one share below the first of the next, in their order."""
    ordered = sorted(shares)
    bounds = sorted({bound for one in ordered for bound in (one.first, one.end)})
    found: list[Span] = []
    for first, end in pairwise(bounds):
        holders = [one for one in ordered if one.first <= first and end <= one.end]
        if not holders:
            continue
        goes_on = found and found[-1].share == holders[-1] and found[-1].end == first
        found.append(Span(holders[-1], found.pop().first if goes_on else first, end))
    return found


def missing(shares: Sequence[Share], found: Sequence[Span]) -> tuple[int, int] | None:
    """The first records that no part has although a later part begins behind them, if there are.

    A part begins with a record before which all others were acknowledged.
    """
    due = 0
    for first, end in (*((one.first, one.end) for one in found), (_begin(shares), 0)):
        if first > due:
            return due, first
        due = max(due, end)
    return None


def _begin(shares: Sequence[Share]) -> int:
    return max((one.first for one in shares), default=0)
