"""From two loss curves to one formula: two trainings that should be equal part.

A tanh network learns digits with SAM, two passes a step. The runs differ in how the backward of
tanh is computed, and in nothing else:

    kernel        torch's own tanh_backward
    decomposed    g·(1 − y·y), three operations, into which compilers decompose tanh_backward
    buggy         like decomposed, but with y rounded to bfloat16: another function
    compiled      the program of kernel under torch.compile, which rewrites its operations
    float64       the program of kernel in float64, a few steps: nearest to the truth

The losses of the first two agree for hundreds of steps and then part. This program records all
five runs and asks anchorlib:

    where             anchor compare: the gradient of which tensor, at step 0
    which operation   anchor ops: tanh_backward stands in one run, mul, rsub and mul in the other
    which formula     --replay: g*fma(-y, y, 1) against g*(1 - y*y), each to the last bit
    which is better   float64 as a third run: which of the two is nearer to it
    does it matter    --noise: three perturbed reruns drift as far; with a bug they do not
    the picture       both losses over each other (a PNG), and the page of both runs (HTML)

    python examples/sam_divergence.py
    python examples/sam_divergence.py --fast       # a few steps, nothing compiled
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sam import SAM
from sklearn.datasets import load_digits
from torch import nn

import anchorlib
from anchor_cli.main import main as anchor

WHOLE = 3  # the first steps are recorded whole, later ones by their losses alone
LAST = "tanh3"  # the last tanh, the first that backward comes to


class TanhDecomposed(torch.autograd.Function):
    """tanh; its backward is three operations, each of them rounded."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """tanh(x), kept for backward."""
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """g·(1 − y·y)."""
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class TanhBuggy(TanhDecomposed):
    """tanh; its backward rounds y to bfloat16 first, which is a bug."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """g·(1 − y·y) with y rounded to bfloat16."""
        (y,) = ctx.saved_tensors
        y = y.bfloat16().float()
        return g * (1 - y * y)


class Tanh(nn.Module):
    """The function as a layer, so that its output has a name."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """tanh of x."""
        return self.function(x)


RUNS: dict[str, Callable[..., torch.Tensor]] = {
    "float64": torch.tanh,
    "kernel": torch.tanh,
    "decomposed": TanhDecomposed.apply,
    "buggy": TanhBuggy.apply,
    "compiled": torch.tanh,
}


def network(function: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Four layers of 64 tanh units and ten logits; always the same parameters."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for number in range(4):
        model.add_module(f"fc{number}", nn.Linear(64, 64))
        model.add_module(f"tanh{number}", Tanh(function))
    model.add_module("out", nn.Linear(64, 10))
    return model


def record(run: str, options: argparse.Namespace) -> None:
    """Train one variant: the first steps recorded whole, and the loss of every step.

    Of step 0 each operation is traced too. `float64` ends after the first steps.
    """
    dtype = torch.float64 if run == "float64" else torch.float32
    model = network(RUNS[run]).to(dtype)
    forward = torch.compile(model) if run == "compiled" else model
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=dtype).flatten(1) / 16
    labels = torch.tensor(digits.target)
    draw = torch.Generator().manual_seed(0)

    def train(steps: int) -> None:
        for _ in range(steps):
            chosen = torch.randint(0, len(images), (64,), generator=draw)
            for finish in (optimizer.first_step, optimizer.second_step):
                loss = nn.functional.cross_entropy(forward(images[chosen]), labels[chosen])
                anchorlib.anchor(loss, "loss")
                loss.backward()
                finish()

    where = {"store": options.store}
    with anchorlib.start(run, overwrite=options.overwrite, **where) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.trace(1)
        train(WHOLE)
    if run != "float64":
        with anchorlib.start(run, resume=True, first_step=WHOLE, **where):
            train(options.steps - WHOLE)


def make_noise(options: argparse.Namespace) -> list[str]:
    """Make three perturbed reruns of `kernel`, as `anchor noise` makes them."""
    command = [sys.executable, __file__, "--only", "kernel"]
    command += ["--steps", str(options.steps), "--store", options.store]
    return anchorlib.noise(command, "kernel", store=options.store, output=subprocess.DEVNULL)


def plot(store: str, file: Path) -> None:
    """Draw both loss curves in one picture, and below them how far they are apart."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    losses = {}
    for name in ("kernel", "decomposed"):
        run = anchorlib.open_run(name, store=store)
        losses[name] = run["loss@value"].where(pass_index=0).values().astype("f8")
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 6))
    above.plot(losses["kernel"], label="kernel", linewidth=2.5, color="#8ecae6")
    above.plot(losses["decomposed"], label="decomposed", linewidth=0.8, color="#d62828")
    above.set(
        ylabel="loss", yscale="log", title="The same training, tanh's backward rounded in two ways"
    )
    above.legend()
    apart = abs(losses["decomposed"] - losses["kernel"]) / losses["kernel"]
    apart[apart == 0] = float("nan")
    below.semilogy(apart, ".-", color="#333333", linewidth=0.8, markersize=2)
    below.axvline(0, color="#d62828", linestyle="--", linewidth=1)
    below.annotate(
        "the gradients part here:\ng*fma(-y, y, 1) | g*(1 - y*y)",
        (0, 0.92), xycoords=("data", "axes fraction"), xytext=(6, 0), textcoords="offset points",
        color="#d62828", fontsize=9, va="top",
    )  # fmt: skip
    below.set(xlabel="step", ylabel="relative difference")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def say(*words: object, store: str) -> None:
    """Print an `anchor` command, run it, and print its exit code."""
    shown = [str(word) for word in words]
    # Three names of noise runs would make the command hard to read.
    line = re.sub(r"( --noise \S+)+", " --noise …", f"anchor {' '.join(shown)}")
    print(f"\n$ {line}\n", flush=True)
    print(f"exit code {anchor([*shown, '--store', store])}", flush=True)


def tell(options: argparse.Namespace, runs: list[str], noise: list[str]) -> None:
    """Answer the questions by the commands that a user would type."""
    print(f"THE PICTURE  the losses of kernel and decomposed: {options.plot}")
    plot(options.store, options.plot)

    print("\nWHERE, WHICH FORMULA, WHICH IS NEARER TO FLOAT64, DOES IT MATTER")
    page = options.plot.with_suffix(".html")
    for run in runs:
        html = ["--html", page] if run == "decomposed" else []
        say("compare", "float64", "kernel", run, "--replay", *noise, *html, store=options.store)

    print("\nWHICH OPERATION  the backward of the last tanh, as either run traced it")
    for run in ("kernel", "decomposed"):
        choice = ("--step", 0, "--stage", "backward", "--module", LAST)
        say("ops", run, *choice, store=options.store)


def main() -> None:
    """Record the runs, and answer the questions about them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", default="anchors", help="where runs live")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--fast", action="store_true", help="a few steps, nothing compiled")
    parser.add_argument("--overwrite", action="store_true", help="replace runs of these names")
    parser.add_argument("--plot", type=Path, default=Path("sam_divergence.png"))
    parser.add_argument("--only", choices=RUNS, help="record this run alone")
    options = parser.parse_args()
    options.steps = 12 if options.fast else max(options.steps, WHOLE)
    torch.set_num_threads(1)  # matrices of 64×64: more threads only wait for each other
    if options.only:
        record(options.only, options)
        return

    runs = [run for run in RUNS if not (options.fast and run == "compiled")]
    for run in runs:
        record(run, options)
    noise = [word for name in make_noise(options) for word in ("--noise", name)]
    tell(options, runs[2:], noise)


if __name__ == "__main__":
    main()
