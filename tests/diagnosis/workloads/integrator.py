"""A neural ordinary differential equation that learns how driven pendulums swing."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
    warmed,
)
from tests.diagnosis.workloads.vector_field import SEEN, Trajectories

_TIMES = 4
"""How often a pendulum is observed, its begin included."""


@dataclass(frozen=True)
class Integrator(Workload):
    """Each pendulum swings more weakly with time, while something pushes it in a fixed rhythm.

    horizon: what times are divided by before the field sees them. small: the factor of the field's
        last weights at the start. act: of the field. gates: how layers are scaled by time, by a
        "sigmoid", by the same as "tanh", or "bare". extra: what numbers that are not observed
        start as, "zeros" or "ones".
    pieces: steps between two observations. divides: whether they share the time between them.
        late: whether a step's time is that of the observation after it. middle: the time of the
        middle slopes, "middle" or "begin". third: the slope that leads to the third one. reach:
        how much of a step lies before the fourth. twice: the weight of the middle slopes.
    flows: whether gradients go back before an observation. shows: the states that are compared,
        those "after" each piece of time or those "before".
    kinetic: the weight of the energy. lasts: whether a step's energy is multiplied by its length.
        moves: whether the field learns from it ("attached"). over: squares of slopes are a "sum"
        or a "mean".
    known: whether observations that are missing are left out. counts: what the error is divided
        by, all that is "seen" or "all".
    forgets: whether gradients are zeroed. clip: of gradients by their norm. warmup: steps of rising
        rate. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    squashing, mean, unit, energy, spending, chosen, keeps: other ways to write the same
        mathematics.
    """

    steps: int = 5
    batch: int = 12
    lr: float = 1e-2
    weight_decay: float = 0.05
    horizon: float = 4.0
    small: float = 0.5
    act: str = "tanh"
    gates: str = "sigmoid"
    extra: str = "zeros"
    pieces: int = 2
    divides: bool = True
    late: bool = False
    middle: str = "middle"
    third: str = "second"
    reach: float = 1.0
    twice: float = 2.0
    flows: bool = True
    shows: str = "after"
    kinetic: float = 0.05
    lasts: bool = True
    moves: str = "attached"
    over: str = "sum"
    known: bool = True
    counts: str = "seen"
    forgets: bool = True
    clip: float = 0.5
    warmup: int = 2
    parts: int = 1
    low: bool = False
    squashing: str = "after"
    mean: str = "plain"
    unit: bool = False
    energy: str = "apart"
    spending: str = "stepwise"
    chosen: str = "mask"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Trajectories(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (times, *batch) in enumerate(self._swings(seed)):
                if self.forgets or step == 0:
                    clear(optimizer, self)
                count = batch[1].sum() if self.counts == "seen" else batch[1].numel()
                for part in cut(self.parts, *batch):
                    self._learn(model, times, count, *part)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _swings(self, seed):
        """Times, and of each pendulum where it is then, how fast, and whether it was observed."""
        dealing = torch.Generator().manual_seed(29 + 1000 * seed + self.order)
        for step in range(self.steps):
            gaps = 0.4 + 0.8 * torch.rand(_TIMES - 1, generator=dealing)
            size, phase = torch.rand(2, self.batch, 1, generator=dealing)
            seen = torch.rand(self.batch, _TIMES - 1, generator=dealing) < 0.75
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            times = torch.cat((torch.zeros(1), gaps.cumsum(0))).to(torch.get_default_dtype())
            size, angle = 0.5 + size, 1.7 * times + 2 * math.pi * phase
            decay = torch.exp(-0.2 * times)
            place = size * decay * angle.cos() + 0.4 * (2 * times).sin()
            speed = -size * decay * (0.2 * angle.cos() + 1.7 * angle.sin())
            swings = torch.stack((place, speed + 0.8 * (2 * times).cos()), 2)
            swings = swings.to(torch.get_default_dtype())
            found = swings, seen.unsqueeze(2).expand(-1, -1, SEEN)
            yield times, *(one.flip(0) if self.turned else one for one in found)

    def _learn(self, model, times, count, swings, seen):
        """The gradients of one micro-batch: of its errors, and of the energy of its ways."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told, energy = model(swings[:, 0], times)
        told, energy = told.to(swings.dtype), energy.to(swings.dtype)
        wanted = swings[:, 1:]
        if not self.known:
            error = (told - wanted).square().sum()
        elif self.chosen == "mask":
            error = ((told - wanted).square() * seen).sum()
        else:
            error = (told[seen] - wanted[seen]).square().sum()
        error = error / count
        kinetic = self.kinetic * energy.sum() / self.batch
        loss = error + kinetic
        for one, name in ((error, "error_loss"), (kinetic, "kinetic_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()


_GATED = ("field.first@value",)
_SLOPE = ("field.input*@value", "field.first.linear@value", "field.first.input*@value")
_STATE = ("state@value",)
_ENERGY = ("energy@value",)
_ERROR = ("error_loss@*", "output@grad", "read@grad")
_TIMES_A = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "middle slopes count once",
        "bug",
        {"twice": 1.0},
        _STATE + _ENERGY,
        rf"\bMul|\balpha\b|\bAdd(Backward|\b)|{_TIMES_A}|{_GIVEN}",
    ),
    Case(
        "middle slopes at the begin",
        "bug",
        {"middle": "begin"},
        ("field.*.gate@value", "field.*.shift@value", *_SLOPE),
        rf"\bAdd(Backward|\b)|\bDiv|{_TIMES_A}|{_GIVEN}",
    ),
    Case(
        "third slope from the first",
        "bug",
        {"third": "first"},
        _SLOPE,
        rf"\bMul|{_GIVEN}|computes it from|\bAdd(Backward|\b)",
    ),
    Case(
        "fourth slope from half a step",
        "bug",
        {"reach": 0.5},
        _SLOPE,
        rf"\bMul|{_TIMES_A}|{_GIVEN}",
    ),
    Case(
        "steps as long as all pieces",
        "bug",
        {"divides": False},
        (*_SLOPE, "field.*.gate@value", "field.*.shift@value"),
        rf"\bDiv|{_TIMES_A}|{_GIVEN}",
    ),
    Case(
        "times of the next observation",
        "bug",
        {"late": True},
        ("field.*.gate@value", "field.*.shift@value", "field.input*@value"),
        rf"\bselect|\bind(ex|ices)|{_ORDER}|{_GIVEN}|\b(inputs?|given)\b.{{0,40}}differ",
    ),
    Case(
        "times not made smaller",
        "bug",
        {"horizon": 1.0},
        ("field.*.gate@value", "field.*.shift@value"),
        rf"\bDiv|{_TIMES_A}|{_GIVEN}",
    ),
    Case(
        "states detached",
        "bug",
        {"flows": False},
        ("state@grad", "field@grad", "field.last*@grad"),
        rf"{_DETACHED}|(lacks|alone).{{0,60}}Backward|Backward.{{0,60}}(lacks|alone)",
    ),
    Case(
        "energy without the steps' lengths",
        "bug",
        {"lasts": False},
        _ENERGY,
        rf"\bMul|{_TIMES_A}|{_GIVEN}",
    ),
    Case(
        "energy detached",
        "bug",
        {"moves": "detached"},
        ("field@grad", "field.last*@grad", "state@grad", "energy@grad", "output:1@grad"),
        rf"{_DETACHED}|\bPow\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bPow|requires_grad",
    ),
    Case(
        "energy as a mean",
        "bug",
        {"over": "mean"},
        _ENERGY,
        rf"\bMean|\bSum(Backward|\b)|{_TIMES_A}",
    ),
    Case(
        "extra numbers start as ones",
        "bug",
        {"extra": "ones"},
        ("field.input*@value", "field.first.linear@value", "field.first.input*@value"),
        r"\bones|\bzeros|\b[Cc]at(Backward|\b)|\bfill|\bextra",
    ),
    Case(
        "states of the observation before",
        "bug",
        {"shows": "before"},
        ("read@value", "read.input@value"),
        rf"\b[Ss]tack|{_ORDER}|{_GIVEN}|computes it from|\bshift",
    ),
    Case(
        "missing observations count",
        "bug",
        {"known": False},
        _ERROR,
        r"\bMul|\bmask",
    ),
    Case(
        "divided by missing ones too",
        "bug",
        {"counts": "all"},
        _ERROR,
        rf"\bDiv|{_TIMES_A}",
    ),
    Case("gates without sigmoid", "bug", {"gates": "bare"}, _GATED, r"[Ss]igmoid"),
    Case(
        "last weights not made smaller",
        "data",
        {"small": 1.0},
        ("field.last.linear.weight@value",),
    ),
    Case(
        "gradients not zeroed",
        "bug",
        {"forgets": False},
        ("*@grad",),
        r"zero_grad|zeroed|accumulat|gradient of (the )?step|step before",
        step=1,
    ),
    Case("slopes by a tableau", "benign", {"mean": "tableau"}),
    Case("time from 0 to 1", "benign", {"unit": True}),
    Case("energy of all slopes at once", "benign", {"energy": "stacked"}),
    Case("energy at once", "benign", {"spending": "at once"}),
    Case("gates folded into weights", "benign", {"squashing": "folded"}),
    Case("gates by tanh", "benign", {"gates": "tanh"}),
    Case("tanh by sigmoid", "benign", {"act": "sigmoid"}),
    Case("indices for masks", "benign", {"chosen": "index"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("pendulums turned", "benign", {"turned": True}),
    Case(
        "gates folded, low precision",
        "benign",
        {"squashing": "folded"},
        reference={"low": True},
    ),
    Case("tanh by sigmoid, low precision", "benign", {"act": "sigmoid"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("energy as a state", "equal", {"energy": "state"}),
    Case("steps computed twice", "equal", {"keeps": "edges"}),
    Case("killed", "incomplete", {"killed_at": 3}),
]
