"""Runs to read: small, made of numpy arrays, with what tests ask about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.reading import Run
from anchorlib.record import Record
from anchorlib.store import Writer
from tests.anchorlib.store.records import floats, record
from tests.writing import put

STEPS = 3


def training(step: int, scale: float = 1.0) -> list[Record]:
    """What two small layers and a loss leave in a step of two passes."""
    order = 100 * step
    found = []
    for pass_index in range(2):
        for name, kind in (("fc1", "value"), ("fc2", "value"), ("loss", "value"), ("fc2", "grad")):
            raw = scale * np.full((2, 3), 10 * step + pass_index, "<f4")
            found.append(
                record(name, step, raw, kind=kind, pass_index=pass_index, order=order + len(found))
            )
    for name in ("fc1.weight", "fc2.bias"):
        raw = scale * floats(step, -step, 0, 0.5)
        found.append(record(name, step, raw, kind="grad", order=order + len(found)))
    return found


def make_run(store: Path, run: str = "run1", ranks: int = 1, **options: Any) -> Path:
    """A closed run of `STEPS` steps; returns the store."""
    for rank in range(ranks):
        with Writer.open(store, run, rank, header={"rank": rank}, **options) as writer:
            for step in range(STEPS):
                put(writer, training(step, scale=rank + 1))
    return store


def told(run: Run) -> tuple[object, ...]:
    """All that a run says."""
    series = [
        run.series(info.name, info.kind, rank=rank) for info in run.tensors() for rank in info.ranks
    ]
    values = [(one.values().tobytes(), one.columns["digest"].tolist()) for one in series]
    figures = (run.ranks, run.state, run.steps, run.bytes, run.started_ns, run.gaps())
    return (run.tensors(), values, run.histograms("*"), run.header(0), *figures)
