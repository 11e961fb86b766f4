"""Where two runs part in what their headers tell step by step: schedules, and random numbers.

A history is a list of points: a value holds from its step on until the next point's. Two histories
are compared as far as both are known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from anchorlib.diagnosis.pairing import Alignment

__all__ = ["HISTORY", "Parting", "drawn_otherwise", "partings", "settings"]

HISTORY = "history."
"""What entries of the header begin with that tell of something step by step."""

OPTIMIZER = "optimizer"
"""What entries of the header begin with that say what an optimizer was made with."""

RANDOM = "random"
Points = Sequence[tuple[int, Any]]


class Parting(NamedTuple):
    """The first step, as A counts them, at which two histories of one name say different things."""

    name: str
    step: int
    a: Any
    b: Any


def partings(alignment: Alignment) -> list[Parting]:
    """Where the schedules of optimizers part, by name."""
    one, two = _headers(alignment)
    found = []
    for key in one:
        if key.startswith(HISTORY) and key in two and not key.startswith(HISTORY + RANDOM):
            parting = _parting(one[key], two[key], alignment.step_offset)
            if parting is not None:
                found.append(Parting(key.removeprefix(HISTORY), *parting))
    return found


def settings(alignment: Alignment) -> list[Parting]:
    """What optimizers were told otherwise from the first step on, by name."""
    one, two = _headers(alignment)
    return [
        Parting(name, 0, one[name], two[name])
        for name in one
        if name.startswith(OPTIMIZER) and one[name] != two.get(name, one[name])
    ]


def drawn_otherwise(alignment: Alignment) -> int | None:
    """The first step that began with another random state in B; None where none did.

    Of runs that were equal once: where the first steps differ already, the seeds do.
    """
    one, two = _headers(alignment)
    first: list[int] = []
    for key in one:
        if not key.startswith(HISTORY + RANDOM) or key not in two:
            continue
        parting = _parting(one[key], two[key], alignment.step_offset)
        if parting is not None:
            first.append(parting[0])
    seeds = one.get("torch.initial_seed"), two.get("torch.initial_seed")
    return min(first) if first and seeds[0] == seeds[1] else None


def _headers(alignment: Alignment) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Those of the lowest rank that both have."""
    a, b = alignment.a.header, alignment.b.header
    common = sorted(set(a) & set(b))
    return (a[common[0]], b[common[0]]) if common else ({}, {})


def _parting(a: Any, b: Any, offset: int) -> tuple[int, Any, Any] | None:
    one, two = _history(a, 0), _history(b, offset)
    if one is None or two is None:
        return None
    (points_a, until_a), (points_b, until_b) = one, two
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
    return points[bisect_right(points, step, key=lambda point: point[0]) - 1][1]


def _history(told: Any, offset: int) -> tuple[Points, int] | None:
    """The points and the last known step, in A's steps; None for what anyone else has written."""
    try:
        points = [(int(step) - offset, value) for step, value in told["points"]]
        until = int(told["until"]) - offset
    except (KeyError, TypeError, ValueError):
        return None
    ascending = all(one[0] < two[0] for one, two in pairwise(points))
    return (points, until) if points and ascending else None
