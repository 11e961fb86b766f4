"""Planted faults, drawn by seed: a formula of a layer, a training, and the step it changes from.

python -m tests.diagnosis faults 7 12        # these seeds alone, and what was found
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anchorlib
from tests.diagnosis.formulas import BUGS, ROUNDING, Change
from tests.diagnosis.nets import NETS, layers
from tests.diagnosis.planting import Seen
from tests.diagnosis.training import PRECISIONS, SHAPES, Training, train

_CLEAR = 16  # times the rounding of both formulas: from there on a bug cannot be taken for it
PASSES = {"plain": 1, "accumulation": 3, "sam": 2}


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    reference, changed: the two trainings. receiver: name and kind of the record where it shows.
    """

    seed: int
    reference: Training
    changed: Training
    receiver: tuple[str, str]

    @property
    def change(self) -> Change:
        """What was planted."""
        assert self.changed.plant is not None
        return self.changed.plant[1]

    def __str__(self) -> str:
        layer, change, since = self.changed.plant
        t = self.reference
        return (
            f"seed {self.seed}: {t.net} {t.precision} {t.shape}, batch {t.batch}, {t.optimizer}; "
            f"{layer}: {change.kind} {change.name}, from step {since[0]} pass {since[1]}"
        )


@dataclass(frozen=True)
class Outcome:
    """Compare's answer about one fault.

    state: "scored"; "no bit" where the fault changed no recorded bit; "unclear" where a bug is so
        small that it cannot be told from rounding.
    """

    fault: Fault
    state: str
    origin: bool = False
    cls: bool = False
    verdict: bool = False
    said: str = ""


def draw_fault(seed: int) -> Fault:
    """The fault of this seed; nets, precisions and shapes of training take turns."""
    draw = random.Random(f"fault {seed}")
    net, precision = list(NETS)[seed % 3], PRECISIONS[seed // 3 % 3]
    training = draw_training(draw, net, precision, SHAPES[seed // 9 % 3])
    layer, change, receiver = draw_change(draw, training)
    since = (0, 0)
    if draw.random() < 0.4:
        since = draw.randrange(training.steps), draw.randrange(PASSES[training.shape])
    if draw.random() < 0.5 or change.gradient is not None:
        training = training.but(custom=layer)
    changed = training.but(custom=None, plant=(layer, change, since))
    return Fault(seed, training, changed, receiver)


def draw_training(draw: random.Random, net: str, precision: str, shape: str) -> Training:
    """A training of one net."""
    batches = [1, 7, 16, 64, 256] if net == "mlp" else [2, 7, 16]
    return Training(
        net=net,
        structure=draw.randrange(10**6),
        precision=precision,
        shape=shape,
        steps=draw.choice([2, 3]),
        batch=draw.choice(batches),
        lr=draw.choice([0.01, 0.1]),
        optimizer=draw.choice(["sgd", "adam"]),
        seed=draw.randrange(10**6),
        data=draw.randrange(10**6),
    )


def draw_change(
    draw: random.Random, training: Training, pool: Sequence[Change] | None = None
) -> tuple[str, Change, tuple[str, str]]:
    """A layer, a change that fits it, and the record where it shows first."""
    pool = draw.choice([ROUNDING, BUGS]) if pool is None else pool
    fits = [
        (name, change, receiver)
        for name, layer in layers(training.model()).items()
        for change in pool
        if change.kind == layer.kind and computed_in(training, layer.kind) in change.dtypes
        if (receiver := shows_in(name, layer, change)) is not None
    ]
    # Kinds of layers take equal parts, however many layers and changes there are of each.
    kind = draw.choice(sorted({change.kind for _, change, _ in fits}))
    return draw.choice([one for one in fits if one[1].kind == kind])


def computed_in(training: Training, kind: str) -> str:
    """The element type in which a kind of layer computes."""
    if training.precision == "float32" or (training.precision, kind) == ("autocast", "norm"):
        return "float32"
    return "bfloat16"


def shows_in(name: str, layer: Any, change: Change) -> tuple[str, str] | None:
    """Name and kind of the record that a change shows in first."""
    if change.forward is not None:
        return name, "value"
    return layer.receiver(name, change.of)


def judge_fault(fault: Fault, store: Path) -> Outcome:
    """Train both runs, and judge compare's answer by what was planted."""
    train(fault.reference, "a", store)
    plant = train(fault.changed, "b", store)
    assert plant is not None
    place = first_difference("a", "b", fault.receiver, store)
    if plant.seen is None or place is None:
        return Outcome(fault, "no bit")
    assert place >= (plant.seen.step, plant.seen.pass_index)
    cls = true_class(fault.change, plant.seen)
    if cls is None:
        return Outcome(fault, "unclear")
    found = anchorlib.compare("a", "b", store=store)
    return Outcome(
        fault,
        "scored",
        origin=_is_origin(found, place, fault.receiver),
        cls=bool(found.origins) and found.origins[0].cls == cls,
        verdict=found.verdict == {"rounding": "suspect", "not_rounding": "unexpected"}[cls],
        said=f"true: {'@'.join(fault.receiver)} step {place[0]} pass {place[1]} {cls} "
        f"{plant.seen.mathematics:.3g} + {plant.seen.rounding:.3g} eps; said: {describe(found)}",
    )


def true_class(change: Change, seen: Seen) -> str | None:
    """The true class of a difference; None where it is too small to tell."""
    if change.exact:
        return "rounding"
    return "not_rounding" if seen.mathematics > _CLEAR * seen.rounding else None


def first_difference(
    a: str, b: str, receiver: tuple[str, str], store: Path
) -> tuple[int, int] | None:
    """Step and pass of the first record of one tensor that differs, by digests alone."""
    one, other = (anchorlib.open_run(run, store).series(*receiver).columns for run in (a, b))
    pairs = zip(one["step"], one["pass_index"], one["digest"], other["digest"], strict=True)
    return min(((int(s), int(p)) for s, p, x, y in pairs if x != y), default=None)


def _is_origin(found: Any, place: tuple[int, int], receiver: tuple[str, str]) -> bool:
    """Whether the place is named first, and no other place is named.

    An overflow of one run alone in a later step may be named beside its cause.
    """
    if found.first is None or not found.origins:
        return False
    first, origin = found.first.place, found.origins[0].place
    exact = all(
        (one.step, one.pass_index, one.name, one.kind) == (*place, *receiver)
        for one in (first, origin)
    )
    others = [o.place for o in found.origins if o.cls != "nonfinite"]
    return exact and all((place.name, place.kind) == receiver for place in others)


def describe(found: Any) -> str:
    """A comparison in one line."""
    origins = "; ".join(
        f"{o.place.name}@{o.place.kind} step {o.place.step} pass {o.place.pass_index} {o.cls} "
        f"{o.measure.error_eps:.3g} eps"
        for o in found.origins[:4]
    )
    more = f" and {len(found.origins) - 4} more" if len(found.origins) > 4 else ""
    return f"{found.verdict}: {origins}{more}"
