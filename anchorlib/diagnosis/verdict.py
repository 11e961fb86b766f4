"""Whether the differences matter, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.alignment import Alignment
from anchorlib.diagnosis.comparison import Divergence, Losses, Origin
from anchorlib.diagnosis.envelope import ELEMENTS, Envelope
from anchorlib.diagnosis.growth import kinds_of, medians
from anchorlib.diagnosis.measures import Measures
from anchorlib.names import escape, join

__all__ = ["Drift", "drift", "sentence", "verdict"]

Array = np.ndarray[Any, Any]
COVERED = 4.0
"""Median score up to which a drift is covered: between correct runs medians reach 1.4."""
COVERED_LOW = 8.0
"""The same in the first steps of low precision, which perturbed parameters cover less."""
FIRST_STEPS = 2
EPS32 = 2.0**-23
ENOUGH = 3
"""Tensors that a median needs; steps are taken together until there are as many."""
BAD = ("not_rounding", "nonfinite")
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
    """Judge the drift by the noise runs, up to their horizon."""
    rows = alignment.a_row[measures.pair]
    kinds, kind = kinds_of(alignment, rows)
    step = alignment.a.step[rows]
    told = np.isfinite(scores) & (measures["numel"] >= ELEMENTS)
    if noise.horizon is not None:
        told &= step < noise.horizon
    worst = Drift(None, 0.0, -1, "")
    for code, name in enumerate(kinds):
        at = np.flatnonzero(told & (kind == code))
        if not len(at):
            continue
        groups = _groups(step[at])
        found = medians(groups, scores[at], int(groups.max()) + 1)
        low = (measures["eps"][at] > EPS32) & (step[at] < step.min() + FIRST_STEPS)
        limit = np.full(len(found), COVERED)
        limit[np.unique(groups[low])] = COVERED_LOW
        at_worst = int(np.argmax(found / limit))
        covered = bool(found[at_worst] <= limit[at_worst]) and worst.covered is not False
        if found[at_worst] >= worst.worst or not covered:
            first = int(step[at][groups == at_worst].min())
            worst = Drift(covered, max(float(found[at_worst]), worst.worst), first, name)
        else:
            worst = worst._replace(covered=covered)
    return worst


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


def verdict(matched: int, differing: int, origins: Sequence[Origin], told: Drift | None) -> str:
    """The verdict of the contract; `told` is None without noise runs."""
    if not matched:
        return "incomparable"
    if not differing:
        return "identical"
    if any(origin.cls in BAD for origin in origins):
        return "unexpected"
    if told is None or told.covered is None:
        return "suspect"
    if told.covered:
        return "expected"
    # Noise does not have to cover what came in from outside.
    unequal = any(origin.cls in UNKNOWN for origin in origins)
    return "suspect" if unequal else "unexpected"


def sentence(
    answer: str,
    matched: int,
    first: Divergence | None,
    origins: Sequence[Origin],
    parted: Losses | None,
    told: Drift | None,
) -> str:
    """The answer in one sentence for people."""
    if answer == "incomparable":
        return "The runs have no record in common."
    if answer == "identical" or first is None:
        return f"The runs are bit-identical in all {matched} records that both have."
    origin = _answer(origins)
    body = (
        _what(origin)
        if origin is not None
        else (f"{_where(first.place)}: {_name(first.place)} differs, and nothing recorded says why")
    )
    tail = "".join(f"; {part}" for part in (_loss(parted), _noise(told, answer)) if part)
    return f"The runs part at {body}{tail}."


def _answer(origins: Sequence[Origin]) -> Origin | None:
    """The origin to speak of: what makes the verdict bad, else the first."""
    bad = [origin for origin in origins if origin.cls in BAD]
    return next(iter([*bad, *origins]), None)


def _where(place: Any) -> str:
    rank = f", rank {place.rank}" if place.rank else ""
    phase = f", phase {escape(place.phase)}" if place.phase != "train" else ""
    return f"step {place.step}, pass {place.pass_index}{phase}{rank}"


def _name(place: Any) -> str:
    name = escape(place.name)
    words = {
        "value": name,
        "grad": f"the gradient of {name}",
        "pass_grad": f"the gradient of {name}",
        "updated": f"the update of {name}",
        "delta": f"the update of {name}",
    }
    return words.get(place.kind, escape(join(place.name, place.kind)))


def _what(origin: Origin) -> str:
    place, size = origin.place, _size(origin)
    head = f"{_where(place)}: {_name(place)}"
    if origin.cls == "starts_unequal":
        return f"{head} differs by {size} before anything was computed from it: {origin.why}"
    if origin.cls == "window_start":
        return f"{head} already differs by {size} where the records begin: {origin.why}"
    ops = f" ({escape(', '.join(origin.ops[:3]))}{', …' * (len(origin.ops) > 3)})" * bool(
        origin.ops
    )
    equal = "everything it was computed from is bit-identical"
    if origin.cls == "nonfinite":
        return f"{head}{ops} holds NaN or infinity in one run alone"
    words = {
        "rounding": "rounding",
        "not_rounding": "more than rounding",
        "nondeterministic": "an operation that is not deterministic",
    }
    why = f", {origin.why}" if origin.why and origin.cls == "not_rounding" else ""
    return f"{head}{ops} differs by {size} while {equal}: {words[origin.cls]}{why}"


def _size(origin: Origin) -> str:
    measure = origin.measure
    if np.isfinite(measure.error_eps):
        return f"{measure.error_eps:.3g} eps"
    if np.isfinite(measure.share_differing):
        return f"{measure.share_differing:.2%} of its elements"
    return "its shape" if measure.measured == "shape" else "an unknown amount"


def _loss(parted: Losses | None) -> str:
    if parted is None:
        return ""
    if parted.first_bit is None:
        return "the losses are the same"
    if parted.above_1e3 is not None:
        return f"the losses are 0.001 apart from step {parted.above_1e3} on"
    return f"the losses differ from step {parted.first_bit} on, by less than 0.001"


def _noise(told: Drift | None, answer: str) -> str:
    if told is None:
        return ""
    if told.covered is None:
        return "the noise runs say nothing of it"
    if told.covered:
        return "the noise runs drift as far" if answer == "expected" else ""
    where = f"{told.kind} at step {told.step}"
    return f"the drift is {told.worst:.3g} times that of the noise runs ({where})"
