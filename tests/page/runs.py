"""Runs of a small made-up training, quick to write: what the pages of the tests show."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorlib.reading import Run, open_run
from tests.cli.made import make_run, record

STEPS = 12
TENSORS = (
    ("fc1.weight", "value", (4, 6)),
    ("fc1", "value", (8,)),
    ("fc2", "value", (8,)),
    ("loss", "value", ()),
    ("fc2", "grad", (8,)),
    ("fc1", "grad", (8,)),
    ("fc1.weight", "grad", (4, 6)),
    ("fc1.weight", "delta", (4, 6)),
)
PART = ("fc2", "value", 5)
"""Where run b first differs from run a: its last element, by one unit in the last place."""


def small_run(store: Path, name: str = "a", *, steps: int = STEPS, parts: bool = False) -> Run:
    """A run; with `parts` it leaves the others from PART on."""
    random = np.random.default_rng(0)
    records = []
    for step in range(steps):
        for tensor, kind, shape in TENSORS:
            values = _values(random, kind, shape, step)
            if parts and step >= PART[2] and (tensor, kind) != ("fc1.weight", "value"):
                later = step > PART[2] or (tensor, kind) == PART[:2]
                flat = values.reshape(-1)
                flat[-1:] = np.nextafter(flat[-1:], np.float32(9)) if later else flat[-1:]
            records.append(record(tensor, kind, values, step=step))
    make_run(store, records, run=name)
    return open_run(name, store)


def _values(
    random: np.random.Generator, kind: str, shape: tuple[int, ...], step: int
) -> np.ndarray:
    scale = {"value": 1.0, "grad": 2.0 ** -(8 + step), "delta": 1e-3}[kind]
    values = (scale * random.standard_normal(shape)).astype(np.float32)
    return np.abs(values) + np.float32(1 / (step + 1)) if shape == () else values
