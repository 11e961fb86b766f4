"""Calculates from record numbers alone which part of a rank each record is read from.

    part 0    0 ─────────── 550          550 records, of which 500 were acknowledged
    part 1               500 ────── 900
    read      0 ──────── 500 ────── 900

A part is what one collector holds of the rank. A session, which is one writer's recording, numbers
its records in one sequence, to whichever collector it sends them. Where two parts have a record of
the same number, the first collector committed the record, and the acknowledgement was lost before
the session moved to the second collector: both parts hold the same record, which counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Share", "Span", "missing", "spans"]


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """The records first … end - 1 of one session that one part of a rank holds.

    place: the index of the part in a list of all parts of the rank.
    attempt: the number under which that part lists the session as one of its attempts.
    """

    first: int
    end: int
    place: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Span:
    """Records first … end - 1 of a session, which are all read from the part `share.place`."""

    share: Share
    first: int
    end: int


def spans(shares: Iterable[Share]) -> list[Span]:
    """Return from which share each record of a session is read, in the order of the records.

    shares: which of the session's records each part of the rank (at one collector) holds. A record
    that several shares hold is read from the share that begins last; a record that no share holds
    is left out.
    """
    ordered = sorted(shares)
    bounds = sorted({bound for one in ordered for bound in (one.first, one.end)})
    stretches: list[Span] = []
    for first, end in pairwise(bounds):
        holders = [one for one in ordered if one.first <= first and end <= one.end]
        if not holders:
            continue
        goes_on = stretches and stretches[-1].share == holders[-1] and stretches[-1].end == first
        stretches.append(Span(holders[-1], stretches.pop().first if goes_on else first, end))
    return stretches


def missing(shares: Sequence[Share], known: Sequence[Span]) -> tuple[int, int] | None:
    """Return the first range of a session's records that no part holds, as (first, end).

    shares: what each part holds of the session. known: what `spans` returned for them. Return None
        where nothing is missing. Records are missing only if some part begins behind them: all
        records before the first record of a part were acknowledged, so a collector must have them.
    """
    due = 0
    for first, end in (*((one.first, one.end) for one in known), (_begin(shares), 0)):
        if first > due:
            return due, first
        due = max(due, end)
    return None


def _begin(shares: Sequence[Share]) -> int:
    return max((one.first for one in shares), default=0)
