"""Decisions that rounding turned, and how far apart they set runs that noise runs keep together.

An activation such as LeakyReLU has one slope below zero and another above. An element that lies at
zero but for rounding may be taken by the one slope in A and by the other in B, while no noise run
happens to turn it: its gradient then differs by the ratio of the slopes, and no other element's
does. Rounding did it, so that a difference of this size is none to judge by in what follows.

So it is at the limits of a clamp. Where the largest of several elements is taken, as in a max pool,
two that are equal but for rounding may change places, and the gradient goes to the other one.

A turn is believed only where the records show it: every element that leaves the noise has its
decision on the two sides of zero, or of a limit, in the two runs, no further from it than forward
values differ, and the gradient that the decision passes on accounts for the difference. Of two
elements that change places one loses the gradient that the other one gets.
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
LIMITED = re.compile(r"^(Clamp(Min|Max)?|Hardtanh)Backward")
"""Operations whose slope leaps at the limits that they were told."""
LARGEST = re.compile(r"^((Adaptive)?MaxPool\w*|Max)Backward")
"""Operations that pass the gradient on to the largest of several elements."""
LIMIT = re.compile(r"\b(?:min|max)(?:_val)?=(-?[\d.]+(?:e[+-]?\d+)?)")
NEAR = 16.0
"""How many times the usual difference of a forward value a turned element may be from zero."""
TWICE = 2.01
"""How many times the gradient that is passed on a turn may change: by abs, from one sign to the
other."""
OPPOSITE = 1e-3
"""Share by which what one element loses and another one gets may differ."""
PAIRS = 64
"""Elements that are looked at for pairs which change places: those whose gradients differ most."""
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
            f"{self.elements:,} of the {self.numel:,} elements of {where} lie where an operation "
            "decides but for rounding, on its two sides in the two runs: the gradient differs by "
            f"what was decided, and up to {self.size:.1g} in what follows from it is none to judge"
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
    turned = _crossed(beside, off, _limits(frontier, row)) | _swapped(frontier, row, own, beside)
    rest = float(np.linalg.norm(off[~turned]) / np.linalg.norm(own[0]))
    score = rest / max(float(noise.relative[at]), float(noise.floor[at]))
    return (int(turned.sum()), score) if turned.any() and score <= LEAVING else None


def _decided(frontier: Frontier, row: int) -> list[str]:
    """The names of the gradients that a decision passed on to a row; [] where it is no gradient."""
    a = frontier.alignment.a
    if a.tensors[a.tensor[row]].kind != "grad":
        return []
    links = [one for one in frontier.ancestry(row).parents if not one.saved and one.kind == "grad"]
    return [one.name for one in links if any(map(_decides, one.ops))]


def _decides(op: str) -> bool:
    return bool(DECISION.search(op) or LIMITED.match(op) or LARGEST.match(op))


def _limits(frontier: Frontier, row: int) -> set[float]:
    """The values at which the operations between a row and the gradients before it decide."""
    a = frontier.alignment.a
    names, found = set(_decided(frontier, row)), set()
    for edges in a.edges.get(a.tensors[a.tensor[row]].rank, ()) if names else ():
        if edges.name in names:
            if any(map(DECISION.search, edges.ops)):
                found.add(0.0)
            told = zip(edges.ops, edges.arguments, strict=False)
            texts = [text for op, text in told if LIMITED.match(op)]
            found.update(float(one) for text in texts for one in LIMIT.findall(text))
    return found


def _swapped(
    frontier: Frontier,
    row: int,
    own: tuple[Array, Array],
    beside: list[tuple[str, Array, Array]],
) -> Array:
    """Which elements changed places as the largest ones: of two, one has the other's gradient."""
    found = np.zeros(len(own[0]), bool)
    links = frontier.ancestry(row).parents
    if not any(LARGEST.match(op) for one in links if not one.saved for op in one.ops):
        return found
    change = own[1] - own[0]
    most = np.argsort(-np.abs(change), kind="stable")[:PAIRS]
    most = most[change[most] != 0]
    gets = change[most]
    pairs = np.abs(gets[:, None] + gets) <= OPPOSITE * np.abs(gets)
    for kind, x, y in beside:
        if kind == "value" and len(x) == len(found) and len(y) == len(found):
            near = NEAR * np.sqrt(np.mean(np.square(y - x)))
            apart = [one[most][:, None] - one[most] for one in (x, y)]
            turned = np.sign(apart[0]) != np.sign(apart[1])
            close = np.maximum(np.abs(apart[0]), np.abs(apart[1])) <= near
            found[most[(pairs & turned & close).any(axis=1)]] = True
    return found


def _crossed(beside: list[tuple[str, Array, Array]], off: Array, limits: set[float]) -> Array:
    """Which elements a decision near a limit sets apart, as far as the gradient passed on accounts.

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
            for at in limits:
                far = np.maximum(np.abs(x - at), np.abs(y - at))
                crossed |= ((x > at) != (y > at)) & (far <= near)
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
