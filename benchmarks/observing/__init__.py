"""The cost of observing: steps, records and runs against the same work unobserved.

    python -m benchmarks observing [--rows ROW…] [--rounds N] [--store DIR]

A step is told as ratios, smallest and median over the rounds: to the same step unobserved, and to
the same step with empty Python hooks at the same places; each in wall time, with what brings all
into the store, in CPU of the training's process, and with that of the recorder's as well.
ROW is the name of a training (`models`), or `records`, `many`, `copies`, `sessions`, `files`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

import anchorlib
from anchorlib.modes import Summary
from benchmarks.figures import Figure
from benchmarks.observing.models import TRAININGS
from benchmarks.observing.records import copies, many_series, values
from benchmarks.observing.sessions import sessions, unet_files
from benchmarks.observing.steps import steps_of
from benchmarks.observing.turns import wait_for_children

__all__ = ["PARTS", "figures"]

ROUNDS = 9

PARTS: dict[str, Callable[[Path, int], Iterator[Figure]]] = {
    **{name: steps_of(name) for name in TRAININGS},
    "records": values,
    "many": many_series,
    "copies": copies,
    "sessions": sessions,
    "files": unet_files,
}


def figures(rounds: int = ROUNDS, rows: Sequence[str] = ()) -> Iterator[Figure]:
    """Measure the figures of `rows`, or of all rows."""
    torch.set_num_threads(1)
    warm()
    for part in rows or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            yield from PARTS[part](Path(folder), rounds)


def warm() -> None:
    """A first session, and the end of what it had begun beside itself.

    The extra `fast` has its code compiled once half a gigabyte was summarised.
    """
    x = torch.rand(1 << 22)
    with (
        tempfile.TemporaryDirectory() as folder,
        anchorlib.start("warm", store=folder, mode=Summary) as session,
    ):
        for _ in range(40):
            anchorlib.anchor(x, "x", grad=False)
        session.flush()
        wait_for_children()
