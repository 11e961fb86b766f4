"""Where two runs part in the histories of their headers: schedules, and random numbers.

A history is a list of points (step, value): a value holds from its step on until the step of the
next point. Two histories are compared up to the last step that both know.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from anchorlib.diagnosis.pairing import Alignment

__all__ = [
    "HISTORY",
    "HistoryDivergence",
    "drawn_otherwise",
    "partings",
    "partings_of",
    "setting_at",
    "settings",
]

HISTORY = "history."
"""The prefix of header entries that are histories."""

OPTIMIZER = "optimizer"
"""The prefix of header entries that say what an optimizer was made with."""

RANDOM = "random"
Points = Sequence[tuple[int, Any]]


class HistoryDivergence(NamedTuple):
    """The first step, as A counts steps, at which a history differs between the runs.

    name: the history's name. a, b: the values of A and B at that step. rank: the rank whose header
        has the histories.
    """

    name: str
    step: int
    a: Any
    b: Any
    rank: int = 0


def partings(alignment: Alignment) -> list[HistoryDivergence]:
    """Return, for each schedule of the optimizers that differs, the first step at which it does.

    The schedules are in the order of A's header. Each appears once, for the lowest rank on which
    it differs.
    """
    known: dict[str, HistoryDivergence] = {}
    for rank in _ranks(alignment):
        for parting in partings_of(alignment, rank):
            known.setdefault(parting.name, parting)
    return list(known.values())


def partings_of(alignment: Alignment, rank: int) -> list[HistoryDivergence]:
    """Return the first step at which each schedule of the optimizers differs on one rank.

    Schedules that do not differ are left out. The others are in the order of A's header.
    """
    header_a, header_b = (table.header.get(rank, {}) for table in (alignment.a, alignment.b))
    partings_found = []
    for key in header_a:
        if key.startswith(HISTORY) and key in header_b and not key.startswith(HISTORY + RANDOM):
            parting = _parting(header_a[key], header_b[key], alignment.step_offset)
            if parting is not None:
                partings_found.append(HistoryDivergence(key.removeprefix(HISTORY), *parting, rank))
    return partings_found


def settings(alignment: Alignment) -> list[HistoryDivergence]:
    """Return the optimizer settings that headers state once and that differ, in A's header's order.

    Such settings hold from the first step on; schedules are left out. The headers are those of the
    lowest rank that both runs have.
    """
    header_a, header_b = _headers(alignment)
    return [
        HistoryDivergence(name, 0, header_a[name], header_b[name])
        for name in header_a
        if name.startswith(OPTIMIZER) and header_a[name] != header_b.get(name, header_a[name])
    ]


def setting_at(header: Mapping[str, Any], name: str, step: int) -> Any:
    """Return a setting as a run had it at a step (of its own count); None where it is not stated.

    name: such as "optimizer.lr". If the header has a history of the setting, the value comes from
    the history, else from the entry that states the setting once.
    """
    history = _history(header.get(HISTORY + name), 0)
    return header.get(name) if history is None else _at(history[0], step)


def drawn_otherwise(alignment: Alignment) -> int | None:
    """Return the first step, as A counts, that began with other random states in A and B.

    None where no step did so, and where the seeds differ: then the random states of all steps
    differ, and no step is special.
    """
    header_a, header_b = _headers(alignment)
    first: list[int] = []
    for key in header_a:
        if not key.startswith(HISTORY + RANDOM) or key not in header_b:
            continue
        parting = _parting(header_a[key], header_b[key], alignment.step_offset)
        if parting is not None:
            first.append(parting[0])
    seeds = header_a.get("torch.initial_seed"), header_b.get("torch.initial_seed")
    return min(first) if first and seeds[0] == seeds[1] else None


def _headers(alignment: Alignment) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return A's and B's header of the lowest rank that both have; two empty dicts if none is."""
    common = _ranks(alignment)
    a, b = alignment.a.header, alignment.b.header
    return (a[common[0]], b[common[0]]) if common else ({}, {})


def _ranks(alignment: Alignment) -> list[int]:
    """Return the ranks that both runs have, ascending."""
    return sorted(alignment.a.header.keys() & alignment.b.header.keys())


def _parting(a: Any, b: Any, offset: int) -> tuple[int, Any, Any] | None:
    """Return the first step, in A's count, at which two histories differ, with both values.

    offset: what to add to A's steps to get B's. None where the histories do not differ up to the
        last step that both know, or where one of the entries is no history.
    """
    history_a, history_b = _history(a, 0), _history(b, offset)
    if history_a is None or history_b is None:
        return None
    (points_a, until_a), (points_b, until_b) = history_a, history_b
    begin = max(points_a[0][0], points_b[0][0])
    steps = sorted({step for step, _ in (*points_a, *points_b) if step >= begin} | {begin})
    for step in steps:
        if step > min(until_a, until_b):
            return None
        left, right = _at(points_a, step), _at(points_b, step)
        if left != right:
            return step, left, right
    return None


def _at(points: Points, step: int) -> Any:
    return points[max(bisect_right(points, step, key=lambda point: point[0]) - 1, 0)][1]


def _history(entry: Any, offset: int) -> tuple[Points, int] | None:
    """Return the points of a history and the last step it knows, in A's count; None if invalid.

    entry: the header entry; it may be invalid, since anyone may have written a store.
    offset: what to subtract from the entry's steps to get A's.
    """
    try:
        points = [(int(step) - offset, value) for step, value in entry["points"]]
        until = int(entry["until"]) - offset
    except (KeyError, TypeError, ValueError):
        return None
    ascending = all(one[0] < two[0] for one, two in pairwise(points))
    return (points, until) if points and ascending else None
