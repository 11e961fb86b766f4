"""Several faults in one training, each named by one rerun on the other run's values.

Each fault is planted alone first: whether it changes a bit of the record where it shows is told by
that run, which no graft has touched. Then all of them are planted together and grafted. What
compare names there must be these records, all of them and no other.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anchorlib
from tests.diagnosis.faults import PASSES, describe, draw_change, draw_training, first_difference
from tests.diagnosis.nets import NETS
from tests.diagnosis.training import PRECISIONS, SHAPES, Training, train

__all__ = ["Grafted", "draw_grafted", "judge_grafted", "missed", "outcomes", "report"]

MOST = 3  # faults of one training
SHOWN, WRONG = 0.98, 0.01
"""Of the faults that change a bit as many are shown at least; of names as many wrong at most."""

Plants = tuple[tuple[str, Any, tuple[int, int]], ...]
Receiver = tuple[str, str]


@dataclass(frozen=True)
class Grafted:
    """Faults of one training.

    plants: what is planted where, and since when. receivers: where each shows.
    """

    seed: int
    reference: Training
    plants: Plants
    receivers: tuple[Receiver, ...]

    def __str__(self) -> str:
        t = self.reference
        planted = ", ".join(
            f"{layer}: {change.name} from {since}" for layer, change, since in self.plants
        )
        return f"seed {self.seed}: {t.net} {t.precision} {t.shape}; {planted or 'nothing'}"


@dataclass(frozen=True)
class Outcome:
    """The result of a grafted rerun.

    seen: the faults that change a bit. named: where compare found origins. plain: how many of
    `seen` compare names without a graft.
    """

    grafted: Grafted
    seen: frozenset[Receiver]
    named: frozenset[Receiver]
    plain: int
    said: str

    @property
    def hidden(self) -> frozenset[Receiver]:
        """Faults that change a bit and were not named."""
        return self.seen - self.named

    @property
    def wrong(self) -> frozenset[Receiver]:
        """Names at which nothing was planted."""
        return self.named - set(self.grafted.receivers)


def draw_grafted(seed: int) -> Grafted:
    """None to three faults at different records; nets, precisions and shapes take turns."""
    draw = random.Random(f"graft {seed}")
    net, precision = list(NETS)[seed % 3], PRECISIONS[seed // 3 % 3]
    training = draw_training(draw, net, precision, SHAPES[seed // 9 % 3])
    planted: dict[str, tuple[Any, Receiver]] = {}
    for _ in range(0 if seed % 8 == 7 else draw.randint(1, MOST)):
        layer, change, receiver = draw_change(draw, training)
        if receiver not in {other for _, other in planted.values()}:
            planted[layer] = (change, receiver)
    late = (draw.randrange(training.steps), draw.randrange(PASSES[training.shape]))
    since = late if draw.random() < 0.3 else (0, 0)
    plants = tuple((layer, change, since) for layer, (change, _) in planted.items())
    return Grafted(seed, training, plants, tuple(receiver for _, receiver in planted.values()))


def judge_grafted(grafted: Grafted, store: Path) -> Outcome:
    """Train without faults, with each of them, with all of them, and with all of them grafted."""
    train(grafted.reference, "a", store)
    seen = set()
    for number, (plant, receiver) in enumerate(zip(grafted.plants, grafted.receivers, strict=True)):
        run = f"only{number}"
        train(grafted.reference.but(plant=plant), run, store)
        if first_difference("a", run, receiver, store) is not None:
            seen.add(receiver)
    every = grafted.reference.but(also=grafted.plants)
    train(every, "all", store)
    train(every, "b", store, graft="a")
    found = anchorlib.compare("a", "b", store=store)
    plain = anchorlib.compare("a", "all", store=store)
    return Outcome(
        grafted,
        frozenset(seen),
        frozenset((one.place.name, one.place.kind) for one in found.origins),
        len(seen & {(one.place.name, one.place.kind) for one in plain.origins}),
        describe(found),
    )


def outcomes(seeds: Iterable[int]) -> Iterable[Outcome]:
    """The outcomes of these seeds; hidden faults and wrong names are printed on the way."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as store:
            outcome = judge_grafted(draw_grafted(seed), Path(store))
        if outcome.hidden or outcome.wrong:
            parts = {"hidden": outcome.hidden, "wrong": outcome.wrong}
            told = "; ".join(
                f"{word} {sorted(map('@'.join, some))}" for word, some in parts.items() if some
            )
            print(f"{told}: {outcome.grafted}\n    {outcome.said}", file=sys.stderr, flush=True)
        yield outcome


def missed(found: Sequence[Outcome]) -> bool:
    """Whether a target is missed."""
    seen, shown, named, wrong = _counts(found)
    return shown < SHOWN * seen or wrong > WRONG * named or _alarms(found) > 0


def report(found: Sequence[Outcome]) -> Iterable[str]:
    """The table, in Markdown."""
    seen, shown, named, wrong = _counts(found)
    yield "| reruns | faults that change a bit | shown | without a graft | names | wrong |"
    yield "|---|---|---|---|---|---|"
    plain = sum(one.plain for one in found)
    yield f"| {len(found)} | {seen} | {shown} | {plain} | {named} | {wrong} |"
    yield ""
    empty = sum(not one.grafted.plants for one in found)
    yield f"without a fault: {empty}, of which named anything: {_alarms(found)}"


def _counts(found: Sequence[Outcome]) -> tuple[int, int, int, int]:
    seen = sum(len(one.seen) for one in found)
    shown = seen - sum(len(one.hidden) for one in found)
    return seen, shown, sum(len(one.named) for one in found), sum(len(one.wrong) for one in found)


def _alarms(found: Sequence[Outcome]) -> int:
    return sum(bool(one.named) for one in found if not one.grafted.plants)
