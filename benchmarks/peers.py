"""The cost of other tools on the MLP of `benchmarks.training`, each used as its documents show.

TensorBoard histograms of every tensor, wandb's `watch` (offline), rerun tensors into a file,
msprobe's tensors of modules, and torchlens and nnsight, which see the forward pass alone. A tool
that is not installed is left out and named:

    pip install tensorboard wandb rerun-sdk mindstudio-probe torchlens nnsight
    python -m benchmarks peers
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import Figure, figure
from benchmarks.timing import interleaved, ratio
from benchmarks.training import Arm, Trained, mlp

STEPS = 10


def figures() -> Iterator[Figure]:
    """Measure one tool after the other, each against unobserved steps."""
    torch.set_num_threads(1)
    for package, (words, make) in PEERS.items():
        if find_spec(package) is None:
            print(f"benchmarks: {package} is not installed and left out", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            plain, seen = (Trained(mlp, torch.randn(1000, 784)) for _ in range(2))
            arms = {"plain": plain.steps(STEPS), "seen": make(seen, Path(folder))}
            samples = interleaved(arms, rounds=5)
            yield figure(f"MLP, {words}: wall", ratio(samples, "seen", "plain"))
            found = ratio(samples, "seen", "plain", clock="thread")
            yield figure(f"MLP, {words}: CPU of the training thread", found)


def tensorboard(trained: Trained, folder: Path) -> Arm:
    """A histogram of each tensor at each step."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)
    trained.hooked(lambda name, x: writer.add_histogram(name, x.detach()))
    return trained.steps(STEPS)


def wandb(trained: Trained, folder: Path) -> Arm:
    """Gradients and parameters by `watch`, at each step."""
    import wandb

    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    run = wandb.init(dir=folder)
    run.watch(trained.model, log="all", log_freq=1)
    return stepping(trained, lambda: run.log({"step": 1}))


def rerun(trained: Trained, folder: Path) -> Arm:
    """Each tensor at each step, into one file."""
    import rerun

    rerun.init("benchmarks")
    rerun.save(folder / "run.rrd")
    trained.hooked(lambda name, x: rerun.log(name, rerun.Tensor(x.detach().numpy())))
    return trained.steps(STEPS)


def msprobe(trained: Trained, folder: Path) -> Arm:
    """Inputs, outputs and gradients of every module at each step, a file each."""
    from msprobe.pytorch import PrecisionDebugger

    settings = folder / "config.json"
    about = {"task": "tensor", "level": "L0", "dump_path": str(folder), "rank": [], "step": []}
    settings.write_text(json.dumps(about | {"tensor": {"data_mode": ["all"]}}))
    debugger = PrecisionDebugger(config_path=str(settings))

    def run() -> None:
        for _ in range(STEPS):
            debugger.start(model=trained.model)
            trained.step()
            debugger.stop()
            debugger.step()

    return run


def nnsight(trained: Trained, _folder: Path) -> Arm:
    """Outputs of the forward pass, kept in memory for the step."""
    from nnsight import NNsight, save

    model = NNsight(trained.model)

    def run() -> None:
        for _ in range(STEPS):
            trained.optimizer.zero_grad()
            with model.trace(trained.inputs):
                kept = save([])
                for place in range(5):
                    kept.append(model[place].output)
            kept[-1].square().mean().backward()
            trained.optimizer.step()

    return run


def torchlens(trained: Trained, _folder: Path) -> Arm:
    """The forward pass traced before each step, outputs kept in memory."""
    import torchlens

    def trace() -> None:
        torchlens.trace(trained.model, trained.inputs)

    return stepping(trained, trace)


def stepping(trained: Trained, also: Callable[[], object]) -> Arm:
    """An arm of steps, each followed by a call of the tool."""

    def run() -> None:
        for _ in range(STEPS):
            also()
            trained.step()

    return run


PEERS: dict[str, tuple[str, Callable[[Trained, Path], Any]]] = {
    "tensorboard": ("TensorBoard histograms", tensorboard),
    "wandb": ("wandb.watch, offline", wandb),
    "rerun": ("rerun tensors", rerun),
    "msprobe": ("msprobe tensors of modules", msprobe),
    "nnsight": ("nnsight, forward alone, in memory", nnsight),
    "torchlens": ("torchlens, forward alone", torchlens),
}
