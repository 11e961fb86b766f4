"""Decisions that rounding turned, and how far apart they set runs that noise runs keep together.

An activation such as LeakyReLU has one slope below zero and another slope above. An element that is
zero but for rounding may fall on one slope in A and on the other slope in B, while no noise run
happens to turn this element. The gradient of the element then differs by the ratio of the slopes,
and the gradient of no other element differs. Since rounding caused this difference, differences of
its size must not be called faults in the records that follow.

The limits of a clamp are such decisions, too. And where the largest of several elements is taken,
as in a max pool, two elements that are equal but for rounding may change places, so that the
gradient goes to the other element.

Adam divides each element of a gradient by its own size. An element whose gradient is zero but for
rounding takes a whole step, in a direction that rounding decides.

A turn is believed only where the records show it. For an update, the gradients of the turned
elements must be as small as gradients usually differ, and must differ by a tenth of their size. For
every element of a gradient that leaves the noise, two things must hold: its forward values in A and
B lie on the two sides of zero or of a limit, no further from it than forward values usually differ;
and the gradient that the decision passes on accounts for the difference. Of two elements that
change places, one loses the gradient that the other gets. Where no operation is known to decide, a
record is believed whose noise lies in few elements, too (`few_elements`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.noise.envelope import (
    SATURATED,
    Envelope,
    factors_of_updates,
    scores,
)
from anchorlib.diagnosis.judgement.noise.few_elements import score_without_few
from anchorlib.diagnosis.judgement.noise.leaving import LEAVING, first_to_leave
from anchorlib.diagnosis.judgement.series import values_of_pair
from anchorlib.diagnosis.pairing import RecordPlace, place_at
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["Turn", "turns"]

Array = np.ndarray[Any, Any]
DECISION = re.compile(r"(Relu|Threshold|Abs)(WithNoise|Kernel)?Backward")
"""Operations whose slope leaps at zero."""
LIMITED = re.compile(r"^(Clamp(Min|Max)?|Hardtanh)Backward")
"""Operations whose slope leaps at limits that are among their arguments."""
LARGEST = re.compile(r"^((Adaptive)?MaxPool\w*|Max)Backward")
"""Operations that pass the gradient on to the largest of several elements."""
LIMIT = re.compile(r"\b(?:min|max)(?:_val)?=(-?[\d.]+(?:e[+-]?\d+)?)")
UPDATES = ("delta", "updated")
"""The kinds of records that an optimizer makes of a parameter and its gradient."""
UNSTEADY = 0.1
"""By what share of its size a gradient differs at least that consists of rounding."""
NEAR = 16.0
"""How far from zero a turned element may be, in usual differences of forward values, or of
gradients."""
TWICE = 2.01
"""By how many times the gradient that is passed on a turn may change an element: by twice that
gradient for abs, whose slope changes its sign."""
OPPOSITE = 1e-3
"""The share by which the gradient that one element loses and the gradient that another element gets
may differ."""
PAIRS = 64
"""How many elements are examined for pairs that change places: those with the most different
gradients."""
MOST = 16
"""The most turns that are looked for, since looking for a turn reads values."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A gradient or an update with elements at which rounding made B decide otherwise than A.

    elements: at how many of the record's `numel` elements that happened. size: the relative error
        of the record, which the turned elements cause; for an update, relative to the parameter.
    in_few: whether that is only known from the noise runs, which differ in few elements too.
    """

    place: RecordPlace
    elements: int
    numel: int
    size: float
    in_few: bool = False

    def line(self) -> str:
        """Return a sentence for people: where elements turned, how many, and what follows."""
        where = f"{self.place.name} at step {self.place.step}, pass {self.place.pass_index}"
        if self.place.kind in UPDATES:
            return (
                f"{self.elements:,} of the {self.numel:,} elements of {where} have gradients that "
                "are zero but for rounding, which the optimizer makes steps of: the update differs "
                f"by these steps, and up to {self.size:.1g} in what follows from it is none to "
                "judge"
            )
        if self.in_few:
            return (
                f"{self.elements:,} of the {self.numel:,} elements of {where} hold most of its "
                "difference, and few others that of the noise runs: without these it is noise, and "
                f"up to {self.size:.1g} in what follows from it is none to judge"
            )
        return (
            f"{self.elements:,} of the {self.numel:,} elements of {where} lie where an operation "
            "decides but for rounding, on its two sides in the two runs: the gradient differs by "
            f"what was decided, and up to {self.size:.1g} in what follows from it is none to judge"
        )


def turns(
    frontier: Frontier, measures: Measures, noise: Envelope | None
) -> tuple[Array | None, list[Turn]]:
    """Return the score of each measured pair without the effect of turns, and a list of the turns.

    A turn is a gradient in which rounding made an operation, such as ReLU, decide otherwise in B,
    or an update in which rounding decided a gradient's sign. A score is a pair's error divided by
    the error of the noise runs. (None, []) without noise runs.
    """
    if noise is None:
        return None, []
    alignment, turns_found = frontier.alignment, []
    error = _errors(frontier, measures)
    judged = scores(measures, noise)
    for _ in range(MOST):
        at = first_to_leave(alignment, measures, judged)
        if at is None or error[at] >= SATURATED:  # too large to judge the records that follow
            break
        turned, in_few = _turned(frontier, measures, noise, at), False
        if turned is None:
            turned, in_few = score_without_few(frontier, measures, noise, at), True
        if turned is None or turned[1] > LEAVING:
            break
        elements, judged[at] = turned
        row, size = int(alignment.a_row[measures.pair[at]]), float(error[at])
        after = _following(frontier, measures, row)
        with np.errstate(invalid="ignore"):
            judged[after] = np.minimum(judged[after], error[after] / size)
        numel = int(measures["numel"][at])
        turns_found.append(Turn(place_at(alignment.a, row), elements, numel, size, in_few))
    return judged, turns_found


def _turned(
    frontier: Frontier, measures: Measures, noise: Envelope, at: int
) -> tuple[int, float] | None:
    """Return how many elements of a pair turned, and the score of all its other elements together.

    None without a turn, where the values cannot be read, and where the other elements leave the
    noise too. at: the pair's index into `measures`.
    """
    row = int(frontier.alignment.a_row[measures.pair[at]])
    updates = frontier.alignment.a.tensors[frontier.alignment.a.tensor[row]].kind in UPDATES
    if not (updates or _decided(frontier, row)):
        return None
    try:
        own, beside = values_of_pair(frontier.alignment, row), _beside(frontier, row)
    except StoreError:
        return None
    if own is None:
        return None
    off = np.abs(own[1] - own[0])
    if updates:
        turned = _undecided(beside, len(off))
    else:
        turned = _crossed(beside, off, _limits(frontier, row))
        turned |= _swapped(frontier, row, own, beside)
    rest = float(np.linalg.norm(off[~turned]) / np.linalg.norm(own[0]))
    score = rest / max(float(noise.relative[at]), float(noise.floor[at]))
    return (int(turned.sum()), score) if turned.any() and score <= LEAVING else None


def _decided(frontier: Frontier, row: int) -> list[str]:
    """Return the names of the gradients from which a deciding operation computed a gradient.

    Deciding operations are those of DECISION, LIMITED and LARGEST: ReLU, abs, clamp, max, max pool
    and their variants. [] for a row that is no gradient, and for a gradient that the backward of
    no such operation made. row: the gradient in A.
    """
    a = frontier.alignment.a
    if a.tensors[a.tensor[row]].kind != "grad":
        return []
    links = [
        link for link in frontier.ancestry(row).parents if not link.saved and link.kind == "grad"
    ]
    return [link.name for link in links if any(map(_decides, link.ops))]


def _decides(op: str) -> bool:
    return bool(DECISION.search(op) or LIMITED.match(op) or LARGEST.match(op))


def _limits(frontier: Frontier, row: int) -> set[float]:
    """Return the values at which the operations behind a gradient decide: 0, and stated limits.

    row: the gradient in A. The empty set where no deciding operation made it.
    """
    a = frontier.alignment.a
    names, limits = set(_decided(frontier, row)), set()
    for edges in a.edges.get(a.tensors[a.tensor[row]].rank, ()) if names else ():
        if edges.name in names:
            if any(map(DECISION.search, edges.ops)):
                limits.add(0.0)
            stated = zip(edges.ops, edges.arguments, strict=False)
            texts = [text for op, text in stated if LIMITED.match(op)]
            limits.update(float(number) for text in texts for number in LIMIT.findall(text))
    return limits


def _swapped(
    frontier: Frontier,
    row: int,
    own: tuple[Array, Array],
    beside: list[tuple[str, Array, Array]],
) -> Array:
    """Return a boolean mask of the elements that changed places as the largest of several.

    Of two such elements, one is the largest in A and the other in B, so that one loses the gradient
    that the other gets.
    row: the gradient in A. own: the gradient's values in A and in B. beside: for each parent, its
    kind and its values in A and in B.
    """
    swapped = np.zeros(len(own[0]), bool)
    links = frontier.ancestry(row).parents
    if not any(LARGEST.match(op) for link in links if not link.saved for op in link.ops):
        return swapped
    change = own[1] - own[0]
    most = np.argsort(-np.abs(change), kind="stable")[:PAIRS]
    most = most[change[most] != 0]
    gets = change[most]
    pairs = np.abs(gets[:, None] + gets) <= OPPOSITE * np.abs(gets)
    for kind, x, y in beside:
        if kind == "value" and len(x) == len(swapped) and len(y) == len(swapped):
            near = NEAR * np.sqrt(np.mean(np.square(y - x)))
            apart = [side[most][:, None] - side[most] for side in (x, y)]
            turned = np.sign(apart[0]) != np.sign(apart[1])
            close = np.maximum(np.abs(apart[0]), np.abs(apart[1])) <= near
            swapped[most[(pairs & turned & close).any(axis=1)]] = True
    return swapped


def _crossed(beside: list[tuple[str, Array, Array]], off: Array, limits: set[float]) -> Array:
    """Return a boolean mask of the elements whose difference a decision near a limit accounts for.

    Their forward values in A and in B lie on two sides of a limit, near it. Their gradients differ
    by no more than TWICE the gradient from which the decision made them.

    beside: the kind and the values of each parent of the gradient. off: how far the gradients of
    the two runs are apart, for each element. limits: the values at which operations decide.
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
    accounted: Array = crossed & (off <= TWICE * passed)
    return accounted


def _undecided(beside: list[tuple[str, Array, Array]], count: int) -> Array:
    """Return a boolean mask of the elements of an update whose gradient consists of rounding.

    The gradient of such an element differs by more than UNSTEADY of its size, and in both runs it
    is no larger than NEAR times what gradients usually differ by, in the elements whose gradients
    differ by less than that.
    beside: the kind and both runs' values of each parent of the update; only gradients count.
    count: how many elements the update has.
    """
    undecided = np.zeros(count, bool)
    for kind, x, y in beside:
        if kind == "grad" and len(x) == len(y) == count:
            apart, size = np.abs(y - x), np.maximum(np.abs(x), np.abs(y))
            steady = apart <= UNSTEADY * size
            usual = np.linalg.norm(apart[steady]) / math.sqrt(max(int(steady.sum()), 1))
            undecided |= ~steady & (size <= NEAR * usual)
    return undecided


def _errors(frontier: Frontier, measures: Measures) -> Array:
    """Return the relative error of each pair; of an update, relative to its parameter.

    What follows from an update is computed from the parameter.
    """
    errors: Array = measures["error_eps"] * measures["eps"]
    rows = frontier.alignment.a_row[measures.pair]
    with np.errstate(all="ignore"):
        return errors / factors_of_updates(frontier.alignment.a, rows)


def _beside(frontier: Frontier, row: int) -> list[tuple[str, Array, Array]]:
    """Return (kind, A's values, B's values) of each parent of a row whose values both runs have.

    row: a row of A. Tensors that autograd saved for backward count as parents.
    """
    a = frontier.alignment.a
    parents = [
        (parent, values_of_pair(frontier.alignment, parent))
        for parent in frontier.parents(row, saved=True)
    ]
    kinds = [(a.tensors[a.tensor[parent]].kind, both) for parent, both in parents]
    return [(kind, *both) for kind, both in kinds if both is not None]


def _following(frontier: Frontier, measures: Measures, row: int) -> Array:
    """Return the indices into `measures` of the records that a turned gradient may affect.

    These are the records of its step that were computed from it, and all records of later steps.
    Other gradients that a deciding operation made of the same incoming gradient, as at a residual
    sum, count too, with the records computed from these.
    row: A's row of the gradient in which elements turned.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    reached, passed = {row}, set(_decided(frontier, row))
    later = np.flatnonzero(
        (a.step[rows] == a.step[row])
        & (a.pass_index[rows] >= a.pass_index[row])
        & (a.order[rows] > a.order[row])
    )
    for candidate in rows[later[np.argsort(a.order[rows[later]], kind="stable")]].tolist():
        beside = a.pass_index[candidate] == a.pass_index[row] and passed.intersection(
            _decided(frontier, candidate)
        )
        if beside or reached.intersection(frontier.parents(candidate, saved=True)):
            reached.add(candidate)
    reached_pairs: Array = np.flatnonzero(
        (a.step[rows] > a.step[row]) | np.isin(rows, list(reached - {row}))
    )
    return reached_pairs
