"""Comparisons made by hand, for tests of the texts about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from anchorlib.diagnosis import (
    Comparison,
    Counts,
    Divergence,
    Growth,
    Losses,
    Origin,
    Pair,
    RecordPlace,
)
from anchorlib.diagnosis.sizes.measures import Measure

EPS = 2.0**-23
MEASURE = Measure(
    eps=EPS,
    error_eps=0.35,
    max_eps=1.25,
    share_differing=0.565,
    max_abs=2.0**-26,
    bias=0.1,
    cosine_distance=1e-15,
    norm=3.0,
    nonfinite=0,
    zeros=0,
    numel=1000,
    worst=3,
    value_a=1.0,
    value_b=1.0000001,
    measured="values",
)
PLACE = RecordPlace(0, 0, 0, 0, "train", "tanh3", "grad")
ORIGIN = Origin(PLACE, "rounding", ("TanhBackward0",), ("fc4@grad",), MEASURE, 4)
DIGESTS = ("0" * 31 + "a", "0" * 31 + "b")


@dataclass(frozen=True)
class Made(Comparison):
    """A comparison whose pairs are given."""

    given: tuple[Pair, ...] = ()

    def pairs(self) -> Iterator[Pair]:
        return iter(self.given)

    def columns(self) -> Iterator[dict[str, list[Any]]]:
        rows = [(*one.place, *one, *(one.measure or [None] * len(MEASURE))) for one in self.given]
        names = (*RecordPlace._fields, *Pair._fields, *MEASURE._fields)
        yield {name: [row[at] for row in rows] for at, name in enumerate(names)}


def pair(name: str, *, step: int = 0, equal: bool = True, **rest: Any) -> Pair:
    """A pair of records; unless it is equal it has MEASURE, or the measure that is given."""
    fields = {
        "place": RecordPlace(step, 0, 0, 0, "train", name, "value"),
        "order": step,
        "order_b": step,
        "equal": equal,
        "digest_a": DIGESTS[0],
        "digest_b": DIGESTS[0 if equal else 1],
        "measure": None if equal else MEASURE,
        "role": "" if equal else "receiver",
        "score": None,
    }
    return Pair(**{**fields, **rest})


IDENTICAL = Made(
    a="eager",
    b="again",
    verdict="identical",
    sentence="All 400 records of eager and again are bit-identical.",
    counts=Counts(400, 400, 0, 0, 0),
    first=None,
    origins=(),
    config_diff={},
    growth=tuple(Growth(0, kind, 0, 13, None, None) for kind in ("value", "grad")),
    given=(pair("fc1"), pair("fc1", step=1)),
)
SUSPECT = Made(
    a="eager",
    b="compiled",
    verdict="suspect",
    sentence="They part at tanh3@grad, by rounding; nothing says how far that may drift.",
    counts=Counts(400, 45, 355, 2, 0),
    first=Divergence(PLACE, 41, 41),
    origins=(ORIGIN,),
    config_diff={
        "torch.backend": ("eager", "inductor"),
        "command": (["python", "t.py", "--run", "eager"], ["python", "t.py", "--run", "compiled"]),
    },
    growth=tuple(
        Growth(step, kind, 12, 13, 0.5 * 1.01**step, None)
        for step in range(500)
        for kind in ("value", "grad")
    ),
    losses=Losses("loss", 6, 207, None, ((0, 1.0, 1.0),)),
    given=(pair("fc1"), pair("tanh3", equal=False, role="rounding", score=math.nan)),
)
UNEXPECTED = replace(
    SUSPECT,
    verdict="unexpected",
    origins=(
        replace(ORIGIN, cls="not_rounding", measure=MEASURE._replace(error_eps=math.inf)),
        ORIGIN,
    ),
    noise=("noise1",),
)
