"""The verdict: whether the differences of two runs matter.

A drift is how far two runs move apart step by step. Noise runs are trainings like A from parameters
one rounding error away. Where A and B drift apart about as far as A and the noise runs do, the
noise runs cover the drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.judgement.noise import ELEMENTS, FLOOR, Envelope, kinds_of, medians
from anchorlib.diagnosis.judgement.origin_classifier import BAD
from anchorlib.diagnosis.judgement.origins import Origin
from anchorlib.diagnosis.judgement.rounding import (
    RECURRENT,
    TOLERANCE,
    differs_by_row_factors,
)
from anchorlib.diagnosis.pairing import Alignment, Counts
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Drift", "drift", "times_of_origins", "verdict"]

Array = np.ndarray[Any, Any]
COVERED = 4.0
"""The median score up to which a drift is covered in the first step that differs: between correct
runs, medians reach 1.4 in that step. A score is an error over that of the noise runs.

In later steps the limit grows. Noise runs were perturbed once, before their first step, whereas a
run that computes by other operations rounds differently in every step, and n independent errors add
up to √n times one error."""
COVERED_LOW = 8.0
"""The limit in place of COVERED for tensors coarser than float32, in the first FIRST_STEPS steps
that differ: there, perturbed parameters make less noise."""
FIRST_STEPS = 2
EPS32 = 2.0**-23
FEW = 32.0
"""Up to this median error, in eps of float32, records differ by several roundings in a row: as many
times that as the rounding is larger than 1 eps with which the runs part, up to TOLERANCE."""
COVERED_FEW = 16.0
"""The least limit in place of COVERED where the median error is FEW eps at most. Noise runs are
perturbed in their parameters alone, whereas a kernel that adds up in another order, as that of a
batch norm in channels-last layout, rounds in every layer of the first step. The score of that step
then takes the place of COVERED in later steps."""
ENOUGH = 3
"""Tensors that a median needs; neighbouring steps are taken together until there are as many."""
MANY = 16
"""How many scores of small tensors are needed to judge them together: single scores may be large by
chance, the median of many is not."""
MOST_TIMES = 16.0
"""How many times TOLERANCE a kernel of a recurrent layer is taken to be off at most: 128 eps; and
half of that for a spread whose terms cancel."""
UNKNOWN = ("starts_unequal", "window_start")


class Drift(NamedTuple):
    """The drift of two runs, compared with that of the noise runs.

    covered: whether the noise runs cover the drift; None where that cannot be decided.
    worst, step, kind: the median score (error over that of the noise runs) by which `covered` was
        decided, with its step and kind of record; step is -1 where records of all steps were judged
        together.
    """

    covered: bool | None
    worst: float
    step: int
    kind: str


def drift(
    alignment: Alignment,
    measures: Measures,
    scores: Array,
    noise: Envelope,
    origins: Sequence[Origin] = (),
) -> Drift:
    """Return whether the noise runs cover the drift: whether they are about as far from A as B is.

    Tensors with many elements decide, in the steps before the noise runs' horizon. (From the
    horizon on, noise runs are too far apart to judge by.) Where no such tensor can be judged, all
    pairs of all steps decide together (`_pooled`).
    noise: how far the noise runs are from A.
    scores: for each measured pair its error over that of the noise runs, as the function `turns`
        returns it; nan where a pair is not judged alone.
    origins: the records where the runs part.
    """
    rows = alignment.a_row[measures.pair]
    kinds, kind = kinds_of(alignment, rows)
    step = alignment.a.step[rows]
    judged = np.isfinite(scores)
    if noise.horizon is not None:
        judged &= step < noise.horizon
    large = judged & (measures["numel"] >= ELEMENTS)
    # Differences of low-precision parameters are a few units in the last place: noise is as large.
    few_units = np.array([name == "delta" for name in kinds] or [False])[kind]
    large &= ~(few_units & (measures["eps"] > EPS32))
    if not large.any():
        return _pooled(measures, scores, noise)
    low = (measures["eps"] > EPS32) & (step < step.min() + FIRST_STEPS)
    error = measures["error_eps"] * measures["eps"]
    few = FEW * EPS32 * _rounding_of(origins)
    drifts = [
        _of_kind(name, scores[at], error[at], step[at], low[at], int(step.min()), few)
        for code, name in enumerate(kinds)
        if len(at := np.flatnonzero(large & (kind == code)))
    ]
    covered = all(drift_of_kind.covered for drift_of_kind in drifts)
    # A kind that is not covered is reported before a covered kind with a larger score.
    worst = max(drifts, key=lambda drift_of_kind: (not drift_of_kind.covered, drift_of_kind.worst))
    return worst._replace(covered=covered)


def times_of_origins(origins: Sequence[Origin], noise: Envelope | None = None) -> float:
    """Return how many times as far as noise the rounding of some origins may move the runs apart.

    Kernels of recurrent layers approximate their gates, a spread may be the rest of terms that
    cancel, and what a program makes of its data alone is equal in all noise runs. Where such a
    value is off by more than TOLERANCE eps, what follows from it may be as many times further off
    than what follows from noise, by which parameters are off by one eps. Only values count, whose
    error is relative to their own size: a gradient whose terms cancel may be far off by rounding
    alone. From 1.0 to MOST_TIMES.
    origins: the records where the runs part. noise: how far the noise runs are from A; None where
    that is not known.
    """
    values = [one for one in origins if one.cls == "rounding" and one.place.kind == "value"]
    times = [one.measure.error_eps / TOLERANCE * _roughness(one, noise) for one in values]
    return min(MOST_TIMES, max([1.0, *(each for each in times if np.isfinite(each))]))


def _roughness(origin: Origin, noise: Envelope | None) -> float:
    """Return how much of an origin's error widens the noise: all of it, twice that, or nothing.

    All of it where a kernel of a recurrent layer made the origin, and where no noise run reaches
    it. Twice that where rows differ by
    factors (`differs_by_row_factors`): the squares that an optimizer keeps are twice as far off as
    the gradients of what reads these rows.
    """
    if any(map(RECURRENT.match, (*origin.ops_a, *origin.ops_b))):
        return 1.0
    if origin.evidence is None or not origin.measure.error_eps > TOLERANCE:
        return 0.0
    frontier, row = origin.evidence
    pair = int(np.searchsorted(frontier.alignment.a_row, row))  # pairs are in A's order
    factors = differs_by_row_factors(frontier, row, int(frontier.alignment.b_row[pair]))
    if factors:
        return 2.0
    return 1.0 if noise is not None and not noise.reaches(row) else 0.0


def _rounding_of(origins: Sequence[Origin]) -> float:
    """Return the largest rounding, in eps, by which values differ where the runs part.

    From 1.0 to TOLERANCE; 1.0 where an origin is no rounding. A transform that the program computes
    by itself may round as much, and noise runs, whose parameters are moved alone, do not.
    """
    errors = [one.measure.error_eps for one in origins if one.place.kind == "value"]
    if not errors or any(one.cls != "rounding" for one in origins):
        return 1.0
    return float(np.clip(np.nanmax([1.0, *errors]), 1.0, TOLERANCE))


def _of_kind(  # noqa: PLR0913 - the columns of one kind
    kind: str, scores: Array, error: Array, step: Array, low: Array, first: int, few_error: float
) -> Drift:
    """Return the drift of one kind of record: the median score that is largest against its limit.

    There is a median score and a limit for each group of neighbouring steps. The drift is covered
    where no median score exceeds its limit.
    kind: the kind's name. scores, error, step, low: an entry for each pair of the kind. error: the
    pair's relative error. low: whether COVERED_LOW is the pair's limit.
    first: the first step in which the runs differ. few_error: the relative error up to which
    records differ by several roundings in a row.
    """
    groups = _groups(step)
    middles = medians(groups, scores, int(groups.max()) + 1)
    since = np.full(len(middles), np.inf)
    np.minimum.at(since, groups, step - first)
    few = medians(groups, error, len(middles)) <= few_error
    # Noise that was too small for the few roundings of the first step stays so in what follows.
    began = min(float(middles[0]), COVERED_FEW) if few[0] and since[0] == 0 else COVERED
    limit = max(COVERED, began) * np.sqrt(1 + since)
    limit[few] = np.maximum(limit[few], COVERED_FEW)
    limit[np.unique(groups[low])] = COVERED_LOW
    at = int(np.argmax(middles / limit))
    return Drift(
        bool(middles[at] <= limit[at]), float(middles[at]), int(step[groups == at].min()), kind
    )


def _pooled(measures: Measures, scores: Array, noise: Envelope) -> Drift:
    """Return the drift where no tensor can be judged alone: by the median score of all pairs.

    No tensor can be judged alone where all are small, or the noise is large from the first step.
    With fewer than MANY pairs nothing is decided. Saturated noise (too large to judge by) can show
    that a drift is covered, but never that a drift is not covered.
    scores: the scores of pairs that can be judged alone, else nan.
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
    """Return the group number of each entry; a group is some successive steps.

    A group takes in steps until it has ENOUGH entries. The last steps join the group before them
    if they have too few. step: the step of each entry. Equal steps are in one group, whatever their
    order.
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
    numbers_of_entries: Array = numbers[which.reshape(-1)]
    return numbers_of_entries


def verdict(
    counts: Counts, origins: Sequence[Origin], noise_drift: Drift | None, *, harmless: bool
) -> str:
    """Return the verdict: "identical", "expected", "suspect", "unexpected" or "incomparable".

    "incomparable": no records were paired. "identical": no pair differs. "unexpected": the
    difference matters. "expected": it does not. "suspect": that cannot be decided.
    origins: the records where the runs part.
    noise_drift: whether the noise runs cover the drift; None without noise runs.
    harmless: whether nothing can follow from the differences, since no value differs, or none from
        which anything else is computed.
    """
    if not counts.matched:
        return "incomparable"
    if not counts.differing:
        return "identical"
    if any(origin.cls in BAD for origin in origins):
        return "unexpected"
    if harmless:
        return "expected"
    if noise_drift is None or noise_drift.covered is None:
        return "suspect"
    if noise_drift.covered:
        return "expected"
    # Noise runs need not cover a difference that came in from outside.
    unequal = any(origin.cls in UNKNOWN for origin in origins)
    return "suspect" if unequal else "unexpected"
