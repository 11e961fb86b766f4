"""`anchor run` as a user types it, in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anchorlib

EXAMPLES = Path(__file__).parents[3] / "examples" / "unedited"
ANCHOR = [sys.executable, "-m", "anchor_cli"]

# A model, an optimizer and three steps.
PLAIN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(16, 4)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(repr(model[0].weight.double().sum().item()))
"""


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def said(self):
        """The lines on stderr, but those of what a step weighs."""
        weighs = "anchor: a step of run "
        return [line for line in self.err.splitlines() if not line.startswith(weighs)]


@dataclass(frozen=True)
class Bench:
    """A directory with programs, and the store that they record into.

    interpreter: the Python that runs them.
    """

    place: Path
    interpreter: str = sys.executable

    def environment(self, **more):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")}
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE"):
            clean.pop(name, None)
        return clean | {"OMP_NUM_THREADS": "1", "ANCHOR_RECORDER": "thread"} | more

    def call(self, *words, **environment):
        done = subprocess.run(
            [*map(str, words)],
            cwd=self.place,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def python(self, *words, **environment):
        """A program as it is."""
        return self.call(self.interpreter, *words, **environment)

    def anchor(self, *words, **environment):
        """A command of `anchor`."""
        return self.call(*ANCHOR, *words, **environment)

    def observed(self, *words, name="run1", options=(), **environment):
        """A program under `anchor run`."""
        named = [] if name is None else ["--name", name]
        return self.anchor("run", *named, *options, "--", self.interpreter, *words, **environment)

    def program(self, text, name="train.py"):
        """A program written into the directory; its name."""
        (self.place / name).write_text(text)
        return name

    def run(self, name="run1"):
        """What was recorded."""
        return anchorlib.open_run(name, self.place / "anchors")

    def names(self, name="run1"):
        """The names of what was recorded."""
        return {info.name for info in self.run(name).tensors()}

    @property
    def runs(self):
        """The names of all runs."""
        return sorted(path.stem for path in (self.place / "anchors").glob("*.zarr"))
