"""Molecules and assays, not all of them done: an isomorphism network with a shared node."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
)
from tests.diagnosis.workloads.pooler_net import Net

_ELEMENTS, _SHELLS, _BONDS, _TASKS = 5, 3, 3, 5
_TRAINED, _SHOWN = 96, 24
"""Molecules to learn from, and to evaluate with."""


@dataclass(frozen=True)
class Pooler(Workload):
    """Batches of molecules are one large graph; targets are binary, and some are missing.

    own: what an atom's own row is multiplied by, "one plus eps" or "eps". dropout: its share.
    remembers: whether a shared node is added to what its update is given. bends_last: whether the
        last layer ends with a relu.
    jumps: the states that are summed, "all" or "all but the last". readout: "mean" or "sum".
        divisor: of a mean, each graph's "own" count of atoms, or the "average".
    missing: whether missing targets are "left out" or "negatives". over: what the losses are
        divided by, the count of the "labelled" targets or of "all".
    decays, falls: after how many steps the learning rate falls, and its factor.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    flow, gathers, keeps, norming, pools, spreads, reads, missed: other ways to write the same
        mathematics.
    """

    decoupled: bool = False
    weight_decay: float = 0.0
    lr: float = 5e-3
    evaluates: bool = True
    own: str = "one plus eps"
    dropout: float = 0.2
    remembers: bool = True
    bends_last: bool = False
    jumps: str = "all"
    readout: str = "mean"
    divisor: str = "own"
    missing: str = "left out"
    over: str = "labelled"
    decays: int = 2
    falls: float = 0.5
    wakes: bool = True
    low: bool = False
    flow: str = "to target"
    gathers: str = "index"
    keeps: str = "messages"
    norming: str = "torch"
    pools: str = "index"
    spreads: str = "index"
    reads: str = "jump"
    missed: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, (_ELEMENTS, _SHELLS), _BONDS, _TASKS)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, self.decays, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            shown = _batched(molecules()[_TRAINED:])
            for step, (inputs, targets) in enumerate(self._batches(seed)):
                if self.evaluates and step and step % 2 == 0:
                    self._evaluate(model, *shown)
                clear(optimizer, self)
                loss = self._loss(self._told(model, inputs), targets)
                anchorlib.anchor(loss, "loss")
                loss.backward()
                optimizer.step()
                schedule.step()

    def _batches(self, seed):
        """Batches of molecules, dealt anew in each epoch."""
        dealing = torch.Generator().manual_seed(43 + 1000 * seed + self.order)
        each = _TRAINED // self.batch
        for step in range(self.steps):
            if step % each == 0:
                dealt = torch.randperm(_TRAINED, generator=dealing)
            chosen = dealt[step % each * self.batch :][: self.batch]
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield _batched([molecules()[at] for at in chosen])

    @torch.no_grad()
    def _evaluate(self, model, inputs, targets):
        """The loss of molecules that are not learnt from."""
        model.eval()
        anchorlib.anchor(self._loss(self._told(model, inputs), targets), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(*inputs)
        return told.to(model.head.weight.dtype)

    def _loss(self, logits, targets):
        """The mean loss of all targets that are known."""
        known = ~targets.isnan() if self.missing == "left out" else targets.isnan() | True
        targets = targets.nan_to_num()
        anchorlib.anchor(targets[known], "targets")
        if self.missed == "softplus":
            return functional.softplus((1 - 2 * targets[known]) * logits[known]).mean()
        losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        losses = torch.where(known, losses, torch.zeros_like(losses))
        return losses.sum() / (known.sum() if self.over == "labelled" else known.numel())


@cache
def molecules():
    """Atoms (atom, 2), bonds (2, bond), their kinds, and targets (task) of molecules."""
    draw = random.Random(5)
    return [_molecule(draw) for _ in range(_TRAINED + _SHOWN)]


def _molecule(draw):
    """A tree of atoms with at most four bonds each, and rings in it."""
    size = draw.randint(6, 12)
    degrees, bonds = [0] * size, []
    for at in range(1, size):
        _bond(draw.choice([one for one in range(at) if degrees[one] < 4]), at, degrees, bonds)
    rings = 0
    for _ in range(draw.randint(0, 2)):
        one, other = sorted(draw.sample(range(size), 2))
        if (one, other) not in bonds and max(degrees[one], degrees[other]) < 4:
            _bond(one, other, degrees, bonds)
            rings += 1
    elements = draw.choices(range(_ELEMENTS), (10, 4, 4, 1, 1), k=size)
    shells = [draw.randrange(_SHELLS) for _ in range(size)]
    kinds = draw.choices(range(_BONDS), (6, 3, 1), k=len(bonds))
    told = (
        rings > 0,
        sum(one in (1, 2) for one in elements) > 3,
        degrees.count(1) > 3,
        kinds.count(1) > 2,
        shells.count(0) > size / 3,
    )
    targets = [float(one) if draw.random() < 0.7 else float("nan") for one in told]
    return list(zip(elements, shells, strict=True)), bonds, kinds, targets


def _bond(one, other, degrees, bonds):
    bonds.append((one, other))
    degrees[one] += 1
    degrees[other] += 1


def _batched(chosen):
    """Molecules as one graph whose bonds lead both ways, and their targets (molecule, task)."""
    atoms, bonds, kinds, graph = [], [], [], []
    for at, (own, ends, of, _) in enumerate(chosen):
        bonds += [(one + len(atoms), other + len(atoms)) for one, other in ends]
        atoms += own
        kinds += of
        graph += [at] * len(own)
    edges = torch.tensor(bonds).T
    inputs = (
        torch.tensor(atoms),
        torch.cat((edges, edges.flip(0)), 1),
        torch.tensor(kinds).repeat(2),
        torch.tensor(graph),
    )
    return inputs, torch.tensor([targets for *_, targets in chosen])


_READ = ("readout@value",)
_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A|a factor of its own"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ADD = r"\bAdd(Backward|\b)"
CASES = [
    Case("atoms summed for a mean", "bug", {"readout": "sum"}, _READ, rf"\bDiv|{_TIMES}"),
    Case(
        "mean over the average count",
        "bug",
        {"divisor": "average"},
        _READ,
        rf"\bDiv|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "shared node forgotten",
        "bug",
        {"remembers": False},
        ("updates.1*.input@value", "updates.1.mlp.0@value"),
        rf"{_ADD}|{_GIVEN}|computes it from|(lacks|alone)",
    ),
    Case(
        "eps without one",
        "bug",
        {"own": "eps"},
        ("convs.0.mlp*.input@value", "convs.0.mlp.0@value"),
        rf"\bMul|{_ADD}|{_GIVEN}",
    ),
    Case(
        "relu behind the last layer",
        "bug",
        {"bends_last": True},
        ("drops.2.input@value", "drops.2@value"),
        r"\brelu|clamp|threshold",
    ),
    Case(
        "last layer left out of the jump",
        "bug",
        {"jumps": "all but the last"},
        ("jump@value", "readout.input*@value"),
        rf"{_ADD}|\bSum|{_GIVEN}|computes it from|(lacks|alone)",
    ),
    Case(
        "missing targets as negatives",
        "bug",
        {"missing": "negatives"},
        (*_LOSS, "targets@value"),
        rf"\bWhere|\bmask|condition|\bDiv|\bIndex|indices|\bshapes?\b|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "loss over missing targets too",
        "bug",
        {"over": "all"},
        _LOSS,
        rf"\bDiv|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("convs.0.mlp.1@value", "convs.0.mlp.1.[rn]*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("rate falls at every step", "bug", {"decays": 1}, UPDATES, r"\blr\b", step=1),
    Case("messages the other way", "benign", {"flow": "to source"}),
    Case("messages by an incidence matrix", "benign", {"gathers": "incidence"}),
    Case("pairs of padded graphs", "benign", {"gathers": "padded"}),
    Case("graphs pooled one by one", "benign", {"pools": "one by one"}),
    Case("readout before the jump", "benign", {"reads": "readout"}),
    Case("loss of known targets by softplus", "benign", {"missed": "softplus"}),
    Case("graphs turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "norms as scale and shift, low precision",
        "benign",
        {"norming": "scale"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "targets@value")),
    Case("shared nodes repeated", "equal", {"spreads": "repeat"}),
    Case("messages computed again", "equal", {"keeps": "nothing"}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
