"""Short ways to record and read through the public doors, and a model whose numbers are exact."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import anchorlib


def recorded(
    store: Path, body: Callable[[anchorlib.Session], object], run: str = "run1", **options: Any
) -> anchorlib.Run:
    """The run that `body` recorded in a session of its own."""
    with anchorlib.start(run, store=store, **options) as session:
        body(session)
    return anchorlib.open_run(run, store)


def listed(run: anchorlib.Run) -> list[str]:
    """`name@kind` of each tensor of a run, in the run's order."""
    return list(dict.fromkeys(f"{info.name}@{info.kind}" for info in run.tensors()))


def places(series: anchorlib.Series) -> list[tuple[int, int, int]]:
    """(step, pass_index, call) of each record."""
    columns = series.columns
    return list(
        zip(*(columns[name].tolist() for name in ("step", "pass_index", "call")), strict=True)
    )


class Net(nn.Module):
    """fc1: 2 -> 3, relu, fc2: 3 -> 1; small whole weights, so that few sums round."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 3)
        self.fc2 = nn.Linear(3, 1)
        for number, parameter in enumerate(self.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float32) - number
            parameter.data = values.reshape(parameter.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def batches(count: int, seed: int = 0) -> Iterator[torch.Tensor]:
    """Batches of four small whole numbers a feature, the same at every call."""
    made = np.random.default_rng(seed).integers(-2, 3, (count, 4, 2))
    return (torch.tensor(one, dtype=torch.float32) for one in made)


@contextmanager
def process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own that runs `script`; killed where it has not ended."""
    started = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with started:
            yield started
    finally:
        if started.poll() is None:
            started.kill()
