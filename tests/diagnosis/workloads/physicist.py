"""A net that learns Burgers' equation: its derivatives, where it begins, and what bounds it."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
)
from tests.diagnosis.workloads.surrogate import Surrogate

_CHUNKS = 4
"""Chunks of time whose residuals wait for those before them."""


@dataclass(frozen=True)
class Physicist(Workload):
    """Drawn places and times should satisfy u_t + u u_x = ν u_xx, a start and two borders.

    turns: whether angles are multiplied by 2 π. centres: whether times are moved to -1 to 1.
    waves: "cosines" or once more "sines" beside the sines. act: of the layers.
    mixes: how views are chosen, "rightly", "exchanged", or one of them "whole".
    viscosity: ν. pushes: whether its term has the other sign. bends: the axis of the second
        derivative, 0: of places.
    graphs: whether second derivatives are themselves differentiable. speed: whether the u that
        multiplies u_x is "attached" or "detached".
    rises: whether the start has the other sign. pulse: its frequency. broadcast: whether it lacks
        an axis.
    first, edge: the weights of the losses of the start and of the borders.
    causal: how much later chunks wait, 0: not at all. waits: whether their weights are "detached".
    inclusive: whether a chunk waits for itself. sorts: whether points are sorted by time.
    over: residuals are a "mean" or a "sum". falls: the factor of the learning rate from step to
        step. clip, clips: of gradients, 0: not at all, by
        their "torch" norm or their "own" norm.
    parts: micro-batches a step.
    linear, flux, viscous, summed, missed, checkpointed, backward, scale: other ways to
        write the same mathematics.
    """

    steps: int = 5
    batch: int = 32
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    decoupled: bool = False
    turns: bool = True
    centres: bool = True
    waves: str = "cosines"
    act: str = "tanh"
    mixes: str = "rightly"
    viscosity: float = 0.1 / math.pi
    pushes: bool = False
    bends: int = 0
    graphs: bool = True
    speed: str = "attached"
    rises: bool = False
    pulse: float = math.pi
    broadcast: bool = False
    first: float = 10.0
    edge: float = 1.0
    causal: float = 0.5
    waits: str = "detached"
    inclusive: bool = False
    sorts: bool = True
    over: str = "mean"
    falls: float = 0.9
    clip: float = 1.0
    clips: str = "torch"
    parts: int = 1
    linear: str = "torch"
    flux: str = "product"
    viscous: str = "outside"
    summed: str = "cumsum"
    missed: str = "torch"
    checkpointed: bool = False
    backward: str = "once"
    scale: float = 1.0

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Surrogate(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for points in self._points(seed):
                clear(optimizer, self)
                for part in cut(self.parts, *points):
                    self._back(self._losses(model, *part))
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _points(self, seed):
        """Places and times inside, at the start, and at both borders, step by step."""
        dealing = torch.Generator().manual_seed(53 + 1000 * seed + self.order)
        for step in range(self.steps):
            inner, first, edge = (
                torch.rand(count, 2, generator=dealing) * torch.tensor([2.0, 1.0])
                - torch.tensor([1.0, 0.0])
                for count in (self.batch, self.batch // 2, self.batch // 2)
            )
            first[:, 1] = 0
            edge[:, 0] = torch.where(edge[:, 0] < 0, -1.0, 1.0)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            found = inner, first, edge
            yield tuple(one.flip(0) for one in found) if self.turned else found

    def _losses(self, model, inner, first, edge):
        """The losses of the residual, of the start and of the borders."""
        begun = (self.pulse * first[:, :1]).sin()
        begun = begun if self.rises else -begun
        begun = begun[:, 0] if self.broadcast else begun
        told = {
            "residual_loss": self._waited(self._residual(model, inner), inner[:, 1]),
            "first_loss": self.first * self._missed(model(first), begun),
            "edge_loss": self.edge * self._missed(model(edge), torch.zeros_like(edge[:, :1])),
        }
        return {name: loss / self.parts for name, loss in told.items()}

    def _missed(self, told, wanted):
        """The mean of squares."""
        if self.missed == "torch":
            return functional.mse_loss(told, wanted)
        missed = (told - wanted).flatten()
        return missed @ missed / len(missed)

    def _residual(self, model, inner):
        """By how much the equation is not satisfied."""
        inner = inner.clone().requires_grad_()
        told = model(inner)
        by_place, by_time = self._slopes(told, inner).split(1, 1)
        speed = told.detach() if self.speed == "detached" else told
        if self.viscous == "outside":
            bent = self.viscosity * self._slopes(by_place, inner, self.graphs)[:, self.bends]
        else:
            bent = self._slopes(self.viscosity * by_place, inner)[:, 0]
        if self.flux == "product":
            flux = speed * by_place
        else:
            flux = self._slopes(told.square() / 2, inner)[:, :1]
        moved = (by_time + flux)[:, 0]
        return anchorlib.anchor(moved + bent if self.pushes else moved - bent, "residual")

    def _slopes(self, told, inner, graphs=True):
        """The derivatives by place and by time (point, 2)."""
        ones = torch.ones_like(told)
        (found,) = torch.autograd.grad(told, inner, ones, retain_graph=True, create_graph=graphs)
        return found

    def _waited(self, residual, times):
        """The mean square of residuals, the later the less while earlier ones are large."""
        residual = residual[times.argsort()] if self.sorts else residual
        missed = anchorlib.anchor(residual.square().view(_CHUNKS, -1).mean(1), "chunks")
        if self.summed == "cumsum":
            before = missed.cumsum(0)
            before = before if self.inclusive else before - missed
        else:
            before = torch.ones(_CHUNKS, _CHUNKS).tril(-1) @ missed
        weights = torch.exp(-self.causal * before)
        weights = weights.detach() if self.waits == "detached" else weights
        return (weights * missed).mean() if self.over == "mean" else (weights * missed).sum()

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "own":
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))
        elif self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_RESIDUAL = ("residual@value",)
_CHUNK = ("chunks@*", "residual@grad")
_FIRST = ("first_loss@*",)
_NET = ("output@grad", "leave*@*grad", "mixed*@*grad", "waves@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "viscosity pushes",
        "bug",
        {"pushes": True},
        _RESIDUAL,
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|other sign|\balpha\b|{_TIMES}",
    ),
    Case(
        "viscosity without pi",
        "bug",
        {"viscosity": 0.1},
        _RESIDUAL,
        rf"\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "second derivative by time",
        "bug",
        {"bends": 1},
        _RESIDUAL,
        rf"\b[Ss]elect|\bslice|\bindex|{_GIVEN}",
    ),
    Case(
        "second derivative not differentiable",
        "bug",
        {"graphs": False},
        _NET,
        rf"{_DETACHED}|create_graph|second derivative|(lacks|alone|without).{{0,60}}Backward",
    ),
    Case(
        "speed detached",
        "bug",
        {"speed": "detached"},
        _NET,
        rf"{_DETACHED}|\bMul\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bMul",
    ),
    Case(
        "start of the other sign",
        "bug",
        {"rises": True},
        _FIRST,
        rf"targets? differ|other sign|{_GIVEN}|is -1(\.0)? times",
    ),
    Case(
        "start without pi",
        "bug",
        {"pulse": 1.0},
        _FIRST,
        rf"targets? differ|{_GIVEN}",
    ),
    Case(
        "start without its last axis",
        "bug",
        {"broadcast": True},
        _FIRST,
        r"broadcast|\bshapes?\b|\bsizes?\b|\bexpand|squeeze|\[\d+, ?\d+\]|\(\d+, ?\d+\)",
    ),
    Case(
        "residuals summed",
        "bug",
        {"over": "sum"},
        ("residual_loss@*", "chunks@grad"),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case(
        "losses' weights exchanged",
        "bug",
        {"first": 1.0, "edge": 10.0},
        ("first_loss@*", "edge_loss@*"),
        rf"\bMul|{_TIMES}",
    ),
    Case("chunks' weights attached", "bug", {"waits": "attached"}, _CHUNK, _DETACHED),
    Case(
        "chunks wait for themselves",
        "bug",
        {"inclusive": True},
        ("residual_loss@*", "chunks@grad"),
        rf"\bSub(Backward|\b)|cumsum|\bExp(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "points not sorted",
        "bug",
        {"sorts": False},
        _CHUNK,
        rf"\bsort|argsort|\bIndex|indices|{_ORDER}",
    ),
    Case("angles without 2 pi", "bug", {"turns": False}, ("waves@value",), rf"\bMul|{_TIMES}"),
    Case("sines twice", "bug", {"waves": "sines"}, ("waves@value",), r"\b[Cc]os(Backward|\b)"),
    Case(
        "times not centred",
        "bug",
        {"centres": False},
        ("waves@value",),
        rf"\bSub(Backward|\b)|\bStack|{_GIVEN}",
    ),
    Case(
        "relu for tanh",
        "bug",
        {"act": "relu"},
        ("mixed.views.*@value", "mixed.acts.0@value"),
        r"\b[Rr]elu|\b[Tt]anh",
    ),
    Case(
        "views exchanged",
        "bug",
        {"mixes": "exchanged"},
        ("mixed@value", "mixed.layers.1@value", "mixed.layers.1.input@value"),
        rf"\bMul|{_GIVEN}|{_ORDER}",
    ),
    Case("gradients not clipped", "bug", {"clip": 0.0}, ("*@grad",), rf"\bclip|{_TIMES}"),
    Case("rate does not fall", "bug", {"falls": 1.0}, UPDATES, r"\blr\b", step=1),
    Case("linear by einsum", "benign", {"linear": "einsum"}),
    Case("tanh by sigmoid", "benign", {"act": "sigmoid"}),
    Case("cosines as moved sines", "benign", {"waves": "phase"}),
    Case("views mixed by lerp", "benign", {"mixes": "lerp"}),
    Case("flux as a derivative", "benign", {"flux": "derivative"}),
    Case("viscosity inside the derivative", "benign", {"viscous": "inside"}),
    Case("chunks by a triangle", "benign", {"summed": "product"}),
    Case("errors by a product", "benign", {"missed": "own"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"causal": 0.0, "sorts": False}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("gradients unscaled", "benign", {"scale": 1000.0}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("points turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "waves.rates@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("layers computed twice", "equal", {"checkpointed": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
