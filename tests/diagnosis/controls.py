"""Controls: pairs of runs that are known to be correct, in scenes that share runs.

A scene is one training, three perturbed reruns of it, and others that differ from it in one way:

    identical    nothing                    identical
    threads      two threads for one        identical, or covered by the noise runs
    perturbed    a fourth perturbed rerun   covered by the noise runs
    rounding     one formula rounds         covered by the noise runs
    bug          one formula is wrong       unexpected, noise runs or not: no control, but their
                                            counterpart
    seed         other parameters           starts_unequal
    order        other samples              starts_unequal
    later        other samples, later       starts_unequal
    compiled     torch.compile              covered by the noise runs
    autocast     bfloat16 for float32       covered by noise runs with bfloat16's epsilon
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anchorlib
from tests.diagnosis.faults import describe, draw_change, draw_training, true_class
from tests.diagnosis.formulas import BUGS, ROUNDING
from tests.diagnosis.nets import NETS
from tests.diagnosis.training import PRECISIONS, SHAPES, Training, train

KINDS = ("identical", "threads", "perturbed", "rounding", "bug", "seed", "order", "later")
NOISE = ["a-noise1", "a-noise2", "a-noise3"]
ZERO_BY_THEORY = {"conv": ("conv0.bias", "conv1.bias"), "transformer": ("k.bias",)}


@dataclass(frozen=True)
class Alarm:
    """One control, compare's answer, and the faults of the answer; none if all is well."""

    seed: int
    kind: str
    training: Training
    wrong: tuple[str, ...]
    verdict: str
    said: str

    def __str__(self) -> str:
        t = self.training
        return (
            f"scene {self.seed} {self.kind}: {t.net} {t.precision} {t.shape}, batch {t.batch}, "
            f"{t.optimizer}; {', '.join(self.wrong)}; said: {self.said}"
        )


def draw_scene(seed: int) -> Training:
    """The training of a scene."""
    draw = random.Random(f"scene {seed}")
    net, precision = list(NETS)[seed % 3], PRECISIONS[seed // 3 % 3]
    return draw_training(draw, net, precision, SHAPES[seed // 9 % 3]).but(steps=4)


def judge_scene(seed: int, store: Path, kinds: tuple[str, ...] = KINDS) -> Iterator[Alarm]:
    """All controls of one scene."""
    training = draw_scene(seed)
    train(training, "a", store)
    if set(kinds) - {"identical", "seed", "order", "later"}:
        for number in (1, 2, 3):
            train(training, "a", store, perturb=f"{number}:{_eps(training)}")
    for kind in kinds:
        yield _judge(seed, kind, training, store)


def judge_autocast(seed: int, store: Path) -> Iterator[Alarm]:
    """Judge a float32 training against itself under autocast."""
    training = draw_scene(seed).but(precision="float32")
    train(training, "a", store)
    for number in (1, 2, 3):
        train(training, "a", store, perturb=f"{number}:bfloat16")
    yield _judge(seed, "autocast", training, store)


def _eps(training: Training) -> str:
    """The epsilon that `anchor noise` chooses: that of the coarsest type the run computed in."""
    return "float32" if training.precision == "float32" else "bfloat16"


def _judge(seed: int, kind: str, training: Training, store: Path) -> Alarm:
    other = _other(seed, kind, training)
    name = kind
    if kind == "perturbed":
        train(training, "a", store, perturb=f"4:{_eps(training)}")
        name = "a-noise4"
    else:
        plant = train(other, name, store)
        if plant is not None and (plant.seen is None or not true_class(plant.change, plant.seen)):
            return Alarm(seed, kind, training, (), "no bit, or unclear", "")
    noise = () if kind in ("identical", "seed", "order", "later") else NOISE
    found = anchorlib.compare("a", name, store=store, noise=noise)
    wrong = [*_WRONG.get(kind, _drift)(found), *_zero_by_theory(found, training, noise)]
    return Alarm(seed, kind, training, tuple(wrong), found.verdict, describe(found))


def _other(seed: int, kind: str, training: Training) -> Training:
    if kind in ("rounding", "bug"):
        draw = random.Random(f"{kind} {seed}")
        layer, change, _ = draw_change(draw, training, {"rounding": ROUNDING, "bug": BUGS}[kind])
        return training.but(plant=(layer, change, (0, 0)))
    changes: dict[str, dict[str, Any]] = {
        "threads": {"threads": 2},
        "seed": {"seed": training.seed + 1},
        "order": {"order": 1},
        "later": {"other_from": 2},
        "compiled": {"compiled": True},
        "autocast": {"precision": "autocast"},
    }
    return training.but(**changes.get(kind, {}))


def _same(found: Any) -> Iterator[str]:
    if found.verdict != "identical" or found.first is not None or found.origins:
        yield "not identical"


def _unequal(found: Any) -> Iterator[str]:
    if found.verdict != "suspect":
        yield f"{found.verdict}, not suspect"
    if {origin.cls for origin in found.origins} != {"starts_unequal"}:
        yield "not starts_unequal alone"


def _drift(found: Any) -> Iterator[str]:
    if found.verdict not in ("expected", "identical"):
        yield found.verdict


def _missed(found: Any) -> Iterator[str]:
    if found.verdict != "unexpected":
        yield found.verdict


_WRONG = {
    "bug": _missed,
    "identical": _same,
    "seed": _unequal,
    "order": _unequal,
    "later": _unequal,
}


def _zero_by_theory(found: Any, training: Training, noise: Any) -> Iterator[str]:
    names = ZERO_BY_THEORY.get(training.net, ()) if noise else ()
    for origin in found.origins:
        if origin.place.name in names and origin.cls == "not_rounding":
            yield f"{origin.place.name} is zero by theory"
