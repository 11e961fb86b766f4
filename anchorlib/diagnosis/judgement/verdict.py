"""Whether the differences matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.judgement.classes import BAD
from anchorlib.diagnosis.judgement.envelope import ELEMENTS, FLOOR, Envelope
from anchorlib.diagnosis.judgement.growth import kinds_of, medians
from anchorlib.diagnosis.judgement.origins import Origin
from anchorlib.diagnosis.pairing import Alignment, Counts
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Drift", "drift", "verdict"]

Array = np.ndarray[Any, Any]
COVERED = 4.0
"""Median score up to which a drift is covered: between correct runs medians reach 1.4.

That is in the first step that differs. Noise runs were moved once, before it, and another way to
compute rounds otherwise in every step: n independent errors are √n times one."""
COVERED_LOW = 8.0
"""The same in the first steps of low precision, which perturbed parameters cover less."""
FIRST_STEPS = 2
EPS32 = 2.0**-23
ENOUGH = 3
"""Tensors that a median needs; steps are taken together until there are as many."""
MANY = 16
"""Scores of small tensors that are judged together: their tails are heavy, their median is not."""
UNKNOWN = ("starts_unequal", "window_start")


class Drift(NamedTuple):
    """covered: whether the noise runs cover the drift; None where that cannot be told.

    worst: the largest median score, its step and kind.
    """

    covered: bool | None
    worst: float
    step: int
    kind: str


def drift(alignment: Alignment, measures: Measures, scores: Array, noise: Envelope) -> Drift:
    """Judge the drift by the noise runs, up to their horizon.

    By tensors of many elements; where there are none, by all scores of the few together.
    """
    rows = alignment.a_row[measures.pair]
    kinds, kind = kinds_of(alignment, rows)
    step = alignment.a.step[rows]
    told = np.isfinite(scores)
    if noise.horizon is not None:
        told &= step < noise.horizon
    large = told & (measures["numel"] >= ELEMENTS)
    # Differences of low-precision parameters are a few units in size: any noise is all of them.
    few_units = np.array([name == "delta" for name in kinds] or [False])[kind]
    large &= ~(few_units & (measures["eps"] > EPS32))
    if not large.any():
        return _pooled(measures, scores, noise)
    low = (measures["eps"] > EPS32) & (step < step.min() + FIRST_STEPS)
    drifts = [
        _of_kind(name, scores[at], step[at], low[at], int(step.min()))
        for code, name in enumerate(kinds)
        if len(at := np.flatnonzero(large & (kind == code)))
    ]
    covered = all(one.covered for one in drifts)
    # Where something is not covered, that is what to speak of.
    worst = max(drifts, key=lambda one: (not one.covered, one.worst))
    return worst._replace(covered=covered)


def _of_kind(kind: str, scores: Array, step: Array, low: Array, first: int) -> Drift:
    """The drift of one kind: the worst median of neighbouring steps."""
    groups = _groups(step)
    found = medians(groups, scores, int(groups.max()) + 1)
    since = np.full(len(found), np.inf)
    np.minimum.at(since, groups, step - first)
    limit = COVERED * np.sqrt(1 + since)
    limit[np.unique(groups[low])] = COVERED_LOW
    at = int(np.argmax(found / limit))
    return Drift(
        bool(found[at] <= limit[at]), float(found[at]), int(step[groups == at].min()), kind
    )


def _pooled(measures: Measures, scores: Array, noise: Envelope) -> Drift:
    """The drift where no single tensor can be judged: too small, or noise from the first step on.

    Saturated noise can still be seen to cover a drift, never that it does not.
    """
    with np.errstate(all="ignore"):
        ratio = measures["error_eps"] / np.fmax(noise.relative / measures["eps"], FLOOR)
    ratio = ratio[~np.isnan(ratio)]
    if len(ratio) < MANY:
        return Drift(None, 0.0, -1, "")
    middle = float(np.median(ratio))
    judged = scores[np.isfinite(scores)]
    beyond = len(judged) >= MANY and float(np.median(judged)) > COVERED
    return Drift(True if middle <= COVERED else False if beyond else None, middle, -1, "all kinds")


def _groups(step: Array) -> Array:
    """Numbers of groups of neighbouring steps, each with enough tensors (the last may have fewer).

    step: ascending or not; equal steps come into one group.
    """
    steps, which, counts = np.unique(step, return_inverse=True, return_counts=True)
    numbers = np.empty(len(steps), np.int64)
    number = held = 0
    for at, count in enumerate(counts.tolist()):
        numbers[at] = number
        held += count
        if held >= ENOUGH:
            number, held = number + 1, 0
    if held and number:
        numbers[numbers == number] = number - 1
    found: Array = numbers[which.reshape(-1)]
    return found


def verdict(
    counts: Counts, origins: Sequence[Origin], told: Drift | None, *, harmless: bool
) -> str:
    """The verdict of the contract.

    told: None without noise runs. harmless: whether nothing can follow from rounding here, since
        no value differs, or none that anything is made of.
    """
    if not counts.matched:
        return "incomparable"
    if not counts.differing:
        return "identical"
    if any(origin.cls in BAD for origin in origins):
        return "unexpected"
    if harmless:
        return "expected"
    if told is None or told.covered is None:
        return "suspect"
    if told.covered:
        return "expected"
    # Noise does not have to cover what came in from outside.
    unequal = any(origin.cls in UNKNOWN for origin in origins)
    return "suspect" if unequal else "unexpected"
