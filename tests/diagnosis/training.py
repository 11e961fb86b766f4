"""Short trainings of the random nets, recorded whole, in the three shapes that steps come in."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anchorlib
from tests.diagnosis.nets import NETS, layers
from tests.diagnosis.planting import Here, Plant

SHAPES = ("plain", "accumulation", "sam")
PRECISIONS = ("float32", "bfloat16", "autocast")


@dataclass(frozen=True)
class Training:
    """One training, whole: the same value trains the same, bit for bit.

    structure: seed of the net's structure. seed: of its parameters. data, order: of the samples,
        and of how they are dealt; from step `other_from` on otherwise. batch: samples a pass.
    plant: where and what is planted (layer, change, since), None: nothing. also: more of them.
    custom: the layer that is written as a custom Function although nothing is planted.
    """

    net: str
    structure: int
    precision: str = "float32"
    shape: str = "plain"
    steps: int = 3
    batch: int = 16
    lr: float = 0.05
    optimizer: str = "sgd"
    seed: int = 0
    data: int = 0
    order: int = 0
    other_from: int | None = None
    threads: int = 1
    compiled: bool = False
    custom: str | None = None
    plant: tuple[str, Any, tuple[int, int]] | None = field(default=None)
    also: tuple[tuple[str, Any, tuple[int, int]], ...] = ()

    def but(self, **changes: Any) -> Training:
        """Another training."""
        return replace(self, **changes)

    def model(self) -> nn.Module:
        """The net, with its parameters drawn."""
        torch.manual_seed(self.seed)
        net = NETS[self.net](random.Random(self.structure))
        return net.bfloat16() if self.precision == "bfloat16" else net


def train(
    training: Training, run: str, store: Path, perturb: str = "", graft: str | None = None
) -> Plant | None:
    """Record `training` as `run`; what was planted, with what its witness saw.

    graft: the run on whose values it goes on.
    """
    here, model = Here(), training.model()
    planted = _plant(training, model, here)
    with threads(training.threads), perturbed(perturb):
        _record(training, model, here, run, store, graft)
    return planted


def _plant(training: Training, model: nn.Module, here: Here) -> Plant | None:
    if training.custom is not None:
        layer = layers(model)[training.custom]
        layer.plant = Plant(layer.kind, None, here)
    plants = [] if training.plant is None else [training.plant]
    planted = []
    for name, change, since in (*plants, *training.also):
        layer = layers(model)[name]
        layer.plant = Plant(layer.kind, change, here, since)
        planted.append(layer.plant)
    return planted[0] if planted else None


def _record(
    training: Training, model: nn.Module, here: Here, run: str, store: Path, graft: str | None
) -> None:
    batches = _batches(training, model, here)
    optimizer = _optimizer(training, model)
    with anchorlib.start(run, store=store) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        forward = torch.compile(model) if training.compiled else model
        with nullcontext() if graft is None else anchorlib.graft(graft):
            for step in range(training.steps):
                here.step = step
                _STEPS[training.shape](training, forward, optimizer, here, batches)
                optimizer.step()
                optimizer.zero_grad()


def _batches(
    training: Training, model: nn.Module, here: Here
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1000 + training.data)
    count = training.batch * 8
    x = torch.randn(count, *model.inputs, generator=source)
    y = torch.randint(0, 10, (count,), generator=source)
    if training.precision == "bfloat16":
        x = x.bfloat16()
    dealing = torch.Generator().manual_seed(training.order)
    while True:
        chosen = torch.randint(0, count, (training.batch,), generator=dealing)
        if training.other_from is not None and here.step >= training.other_from:
            chosen = (chosen + 1) % count
        yield x[chosen], y[chosen]


def _optimizer(training: Training, model: nn.Module) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=training.lr / 50)
    return torch.optim.SGD(model.parameters(), lr=training.lr, momentum=0.9)


def _pass(training: Training, forward: Any, batch: Any, parts: int = 1) -> None:
    x, y = batch
    low = training.precision == "autocast"
    with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
        logits = forward(x)
    loss = nn.functional.cross_entropy(logits.float(), y) / parts
    anchorlib.anchor(loss, "loss")
    loss.backward()


def _plain(training, forward, _optimizer, here, batches):
    here.pass_index = 0
    _pass(training, forward, next(batches))


def _accumulation(training, forward, _optimizer, here, batches):
    for here.pass_index in range(3):
        _pass(training, forward, next(batches), parts=3)


def _sam(training, forward, optimizer, here, batches):
    batch = next(batches)
    here.pass_index = 0
    _pass(training, forward, batch)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with torch.no_grad():
        length = torch.stack([p.grad.float().norm() for p in parameters]).norm()
        before = [p.clone() for p in parameters]
        for p in parameters:
            p.add_(p.grad * (0.05 / (length.item() + 1e-12)))
    optimizer.zero_grad()
    here.pass_index = 1
    _pass(training, forward, batch)
    with torch.no_grad():
        for p, old in zip(parameters, before, strict=True):
            p.copy_(old)


_STEPS = {"plain": _plain, "accumulation": _accumulation, "sam": _sam}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def perturbed(text: str) -> Iterator[None]:
    """Let the sessions inside be noise runs, as ANCHOR_PERTURB says; "": none."""
    before = os.environ.pop("ANCHOR_PERTURB", None)
    if text:
        os.environ["ANCHOR_PERTURB"] = text
    try:
        yield
    finally:
        os.environ.pop("ANCHOR_PERTURB", None)
        if before is not None:
            os.environ["ANCHOR_PERTURB"] = before
