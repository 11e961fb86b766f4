"""Decisions that rounding turned, and how far apart they set runs that noise runs keep together.

An activation such as LeakyReLU has one slope below zero and another above. An element that lies at
zero but for rounding may be taken by the one slope in A and by the other in B, while no noise run
happens to turn it: its gradient then differs by the ratio of the slopes, and no other element's
does. Rounding did it, so that a difference of this size is none to judge by in what follows.

A turn is believed only where the records show it: every element that leaves the noise has its
decision on the two sides of zero in the two runs, no further from zero than forward values differ,
and the gradient that the decision passes on accounts for the difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.noise.envelope import SATURATED, Envelope, scores
from anchorlib.diagnosis.judgement.noise.leaving import LEAVING, first_to_leave
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Place, place_at
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["Turn", "turns"]

Array = np.ndarray[Any, Any]
DECISION = re.compile(r"(Relu|Threshold|Abs)(WithNoise|Kernel)?Backward")
"""Operations whose slope leaps at zero."""
NEAR = 16.0
"""How many times the usual difference of a forward value a turned element may be from zero."""
TWICE = 2.01
"""How many times the gradient that is passed on a turn may change: by abs, from one sign to the
other."""
MOST = 16
"""Turns that are looked for, which reads values."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A gradient in which decisions near zero turned.

    elements: how many of `numel` elements did. size: the relative error that they make.
    """

    place: Place
    elements: int
    numel: int
    size: float

    def line(self) -> str:
        """A sentence on it."""
        where = f"{self.place.name} at step {self.place.step}, pass {self.place.pass_index}"
        return (
            f"{self.elements:,} of the {self.numel:,} elements of {where} lie at zero but for "
            "rounding, on its two sides in the two runs: the gradient differs there by the slopes "
            f"of the activation, and up to {self.size:.1g} in what follows from it is none to judge"
        )


def turns(
    frontier: Frontier, measures: Measures, noise: Envelope | None
) -> tuple[Array | None, list[Turn]]:
    """The scores as they are beside turned decisions, and the turns in order of execution.

    Neither without noise runs.
    """
    if noise is None:
        return None, []
    alignment, found = frontier.alignment, []
    error = measures["error_eps"] * measures["eps"]
    judged = scores(measures, noise)
    for _ in range(MOST):
        at = first_to_leave(alignment, measures, judged)
        told = None if at is None else _turned(frontier, measures, noise, at)
        if at is None or told is None:
            break
        elements, judged[at] = told
        row, size = int(alignment.a_row[measures.pair[at]]), float(error[at])
        after = _following(frontier, measures, row)
        with np.errstate(invalid="ignore"):
            judged[after] = np.minimum(judged[after], error[after] / size)
        numel = int(measures["numel"][at])
        found.append(Turn(place_at(alignment.a, row), elements, numel, size))
    return judged, found


def _turned(
    frontier: Frontier, measures: Measures, noise: Envelope, at: int
) -> tuple[int, float] | None:
    """How many elements of a measured pair turned, and the score of all others.

    None without a turn, where others leave the noise too, or where the error is too large to judge
    what follows.
    """
    row = int(frontier.alignment.a_row[measures.pair[at]])
    apart = float(measures["error_eps"][at] * measures["eps"][at])
    if apart >= SATURATED or not _decided(frontier, row):
        return None
    try:
        own, beside = _values(frontier, row), _beside(frontier, row)
    except StoreError:
        return None
    if own is None:
        return None
    off = np.abs(own[1] - own[0])
    turned = _crossed(beside, off)
    rest = float(np.linalg.norm(off[~turned]) / np.linalg.norm(own[0]))
    score = rest / max(float(noise.relative[at]), float(noise.floor[at]))
    return (int(turned.sum()), score) if turned.any() and score <= LEAVING else None


def _decided(frontier: Frontier, row: int) -> list[str]:
    """The names of the gradients that a decision passed on to a row; [] where it is no gradient."""
    a = frontier.alignment.a
    if a.tensors[a.tensor[row]].kind != "grad":
        return []
    links = [one for one in frontier.ancestry(row).parents if not one.saved and one.kind == "grad"]
    return [one.name for one in links if any(DECISION.search(op) for op in one.ops)]


def _crossed(beside: list[tuple[str, Array, Array]], off: Array) -> Array:
    """Which elements a decision near zero sets apart, as far as the gradient passed on accounts.

    beside: kind and values of what the gradient was computed from. off: how far apart it is.
    """
    crossed, passed = np.zeros(len(off), bool), np.zeros(len(off))
    for kind, x, y in beside:
        if len(x) != len(off) or len(y) != len(off):
            continue
        if kind == "grad":
            passed = np.maximum(passed, np.maximum(np.abs(x), np.abs(y)))
        else:
            near = NEAR * np.sqrt(np.mean(np.square(y - x)))
            crossed |= ((x > 0) != (y > 0)) & (np.maximum(np.abs(x), np.abs(y)) <= near)
    found: Array = crossed & (off <= TWICE * passed)
    return found


def _beside(frontier: Frontier, row: int) -> list[tuple[str, Array, Array]]:
    """Kind and values in both runs of what a row was computed from, where they were kept."""
    a = frontier.alignment.a
    parents = [(one, _values(frontier, one)) for one in frontier.parents(row, saved=True)]
    kinds = [(a.tensors[a.tensor[one]].kind, found) for one, found in parents]
    return [(kind, *found) for kind, found in kinds if found is not None]


def _values(frontier: Frontier, row: int) -> tuple[Array, Array] | None:
    """The values of a row of A and of its partner; None where one was not kept or is not there."""
    alignment = frontier.alignment
    pair = int(np.searchsorted(alignment.a_row, row))
    if alignment.a_row[pair : pair + 1].tolist() != [row]:
        return None
    x, y = values(alignment.a, row), values(alignment.b, int(alignment.b_row[pair]))
    return None if x is None or y is None or x.size != y.size else (x, y)


def _following(frontier: Frontier, measures: Measures, row: int) -> Array:
    """The measured pairs that a turn reached: its descendants, and all later steps.

    Other gradients that the same decision passed on, as those of a residual sum, are reached too.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    reached, passed = {row}, set(_decided(frontier, row))
    same = np.flatnonzero(
        (a.step[rows] == a.step[row])
        & (a.pass_index[rows] >= a.pass_index[row])
        & (a.order[rows] > a.order[row])
    )
    for one in rows[same[np.argsort(a.order[rows[same]], kind="stable")]].tolist():
        beside = a.pass_index[one] == a.pass_index[row] and passed.intersection(
            _decided(frontier, one)
        )
        if beside or reached.intersection(frontier.parents(one)):
            reached.add(one)
    found: Array = np.flatnonzero(
        (a.step[rows] > a.step[row]) | np.isin(rows, list(reached - {row}))
    )
    return found
