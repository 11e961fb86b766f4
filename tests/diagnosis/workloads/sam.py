"""Sharpness-aware minimisation: two passes a step through a wrapper of an optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, cut

_HIDDEN = 48


@dataclass(frozen=True)
class SAM(Workload):
    """rho: how far it climbs. restores: whether it returns before the step.

    forgets: whether gradients are forgotten between the passes. length: how the norm of all
    gradients is computed. other_batch: whether the second pass has other samples.
    backward: how the derivative of tanh is written.
    """

    batch: int = 32
    lr: float = 0.05
    weight_decay: float = 1e-3
    rho: float = 0.05
    restores: bool = True
    forgets: bool = True
    length: str = "stacked"
    eps: float = 1e-12
    adaptive: bool = False
    mixed: bool = False
    backward: str = "plain"
    norm_eps: float = 1e-5
    second_eval: bool = False
    parts: int = 1

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.sgd(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            for images, labels in self.images(seed):
                optimizer.zero_grad()
                self._pass(model, images, labels)
                before = self._climb(model)
                if self.forgets:
                    optimizer.zero_grad()
                model.train(not self.second_eval)
                self._pass(model, images.flip(-1) if self.mixed else images, labels)
                model.train()
                if self.restores:
                    with torch.no_grad():
                        for parameter, old in zip(model.parameters(), before, strict=True):
                            parameter.copy_(old)
                optimizer.step()

    def _pass(self, model, images, labels) -> None:
        for x, y in cut(self.parts, images, labels):
            loss = functional.cross_entropy(model(x), y) / self.parts
            anchorlib.anchor(loss, "loss")
            loss.backward()

    @torch.no_grad()
    def _climb(self, model: nn.Module) -> list[torch.Tensor]:
        parameters = list(model.parameters())
        before = [parameter.clone() for parameter in parameters]
        if self.length == "stacked":
            length = torch.stack([p.grad.norm() for p in parameters]).norm()
        else:
            length = torch.cat([p.grad.flatten() for p in parameters]).norm()
        for parameter in parameters:
            scale = parameter.square() if self.adaptive else 1.0
            parameter.add_(parameter.grad * scale * (self.rho / (length + self.eps)))
        return before


class Tanh(torch.autograd.Function):
    """tanh, its derivative written in one of three ways."""

    @staticmethod
    def forward(ctx, x, way):
        """tanh."""
        y = torch.tanh(x)
        ctx.way = way
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        """Its gradient."""
        (y,) = ctx.saved_tensors
        if ctx.way == "fused":
            return torch.addcmul(g, g * y, y, value=-1), None
        if ctx.way == "wrong":
            y = y.bfloat16().float()
        return g * (1 - y * y), None


class Act(nn.Module):
    """tanh as a module."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x):
        """tanh."""
        return Tanh.apply(x, self.way)


class Net(nn.Module):
    """Two hidden layers with layer norms."""

    def __init__(self, how: SAM) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.norm = nn.LayerNorm(_HIDDEN, eps=how.norm_eps)
        self.tanh1, self.tanh2 = Act("plain"), Act(how.backward)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(_HIDDEN, 10)

    def forward(self, x):
        """Logits."""
        h = self.tanh1(self.norm(self.fc1(x.flatten(1))))
        return self.out(self.drop(self.tanh2(self.fc2(h))))


_SECOND = ("*@value",)
CASES = [
    Case("rho", "bug", {"rho": 0.1}, _SECOND, r"is [\d.]+ times A|rho", step=0),
    Case(
        "not restored",
        "bug",
        {"restores": False},
        UPDATES,
        r"restor|not put back",
    ),
    Case("not forgotten", "bug", {"forgets": False}, ("*@grad",), r"zero_grad"),
    Case("adaptive", "bug", {"adaptive": True}, _SECOND, r"\bsquare\b|\bpow\b"),
    Case("other second batch", "data", {"mixed": True}, ("input@value",)),
    Case("wrong backward", "bug", {"backward": "wrong"}, ("fc2@grad",), r"bfloat16"),
    Case("norm eps", "bug", {"norm_eps": 1e-3}, ("norm@value",), r"eps=0\.001"),
    Case(
        "second pass in eval mode",
        "bug",
        {"second_eval": True},
        ("drop@value", "fc1@value", "norm@value"),
        r"eval",
    ),
    Case(
        "rho behind rounding",
        "bug",
        {"backward": "fused", "rho": 0.1},
        _SECOND,
        r"is [\d.]+ times A|rho",
        step=0,
    ),
    Case("fused backward", "benign", {"backward": "fused"}),
    Case("length at once", "benign", {"length": "at once"}),
    Case("eps of the length", "benign", {"eps": 0.0}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("killed", "incomplete", {"killed_at": 3}),
    Case("other init", "data", {"init": 1}, ("*@value",)),
    Case("again", "equal"),
    Case("again, adaptive", "equal", reference={"adaptive": True}),
]
