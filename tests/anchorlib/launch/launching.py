"""`anchor run` in a directory of its own: as a user types it, or called in this process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import anchorlib
from anchor_cli.main import main

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

    interpreter: the Python that runs them. typed: `anchor` is a process of its own, as where a user
    types it; else it is called in this process, which takes a hundredth of the time.
    """

    place: Path
    interpreter: str = sys.executable
    typed: bool = False

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
        if self.typed:
            return self.call(*ANCHOR, *words, **environment)
        return called([*map(str, words)], self.place, self.environment(**environment))

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


class Replaced(BaseException):
    """This process would have been replaced by another program, which has done its work now."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def called(words, place, environment):
    """What `anchor` does, called in this process; the program that would replace it is started."""
    out, err = io.StringIO(), io.StringIO()

    def replace(_file, command, variables):
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=300, check=False
        )
        out.write(done.stdout)
        err.write(done.stderr)
        raise Replaced(done.returncode)

    ended = {one: signal.getsignal(one) for one in (signal.SIGPIPE, signal.SIGXFSZ)}
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(place):
        patch.setattr(os, "execvpe", replace)
        for name in set(os.environ) - set(environment):
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = int(main(words))
            except Replaced as replaced:
                code = replaced.code
            finally:
                for one, action in ended.items():
                    signal.signal(one, action)
    return Done(code, out.getvalue(), err.getvalue())
