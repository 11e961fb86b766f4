"""An auto-decoder that learns shapes by their signed distances, and a code for each of them."""

from __future__ import annotations

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
from tests.diagnosis.workloads.sculptor_net import Sculptor

_SHAPES, _POINTS = 12, 24
"""Shapes that are learnt, and points of each that a step draws."""


@dataclass(frozen=True)
class Sculpting(Workload):
    """Balls, boxes and rings: distances are learnt near surfaces, and slopes should have length 1.

    repeats: whether a shape's code is repeated for "each" of its points, or "all" codes in turn.
    root: whether what is joined is divided by the root of two. bound: of the codes' lengths.
        beta: of the softplus.
    far: the distance beyond which none is told from another. clamps: what is cut there, "both"
        distances or the "targets" alone.
    slopes: what distances are derived by, "points" or "codes" too. along: the axis of the slopes'
        length. graphs: whether slopes are themselves differentiable.
    eikonal: the weight of the slopes' loss. shrink: that of the codes' lengths; it rises over
        `ramp` steps, which count from `since`.
    code_lr: the codes' learning rate. falls: after how many steps both rates are halved. clip: of
        the decoder's gradients.
    parts: chunks a step. forgets: whether gradients are cleared at each "step" or "chunk".
    joins, act, norming, unit, bounds, lengths, cuts, checkpointed: other ways to write the same
        mathematics.
    """

    batch: int = 4
    lr: float = 5e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    repeats: str = "each"
    root: bool = True
    bound: float = 0.5
    beta: float = 100.0
    far: float = 0.1
    clamps: str = "both"
    slopes: str = "points"
    along: int = 1
    graphs: bool = True
    eikonal: float = 0.1
    shrink: float = 1e-2
    ramp: int = 4
    since: int = 1
    code_lr: float = 2e-2
    falls: int = 3
    clip: float = 1.0
    parts: int = 2
    forgets: str = "step"
    joins: str = "cat"
    act: str = "torch"
    norming: str = "torch"
    unit: str = "square"
    bounds: str = "torch"
    lengths: str = "norm"
    cuts: str = "clamp"
    checkpointed: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Sculptor(self, _SHAPES)
            optimizer = self.adam(
                [
                    {"params": list(model.decoder.parameters()), "lr": self.lr},
                    {"params": list(model.codes.parameters()), "lr": self.code_lr},
                ]
            )
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, self.falls, 0.5)
            session.watch(model, tensors="*", optimizer=optimizer)
            for step, (shapes, samples) in enumerate(self._samples(seed)):
                if step % 3 == 0:
                    self._look(model)
                clear(optimizer, self)
                for part in cut(self.parts, shapes, samples):
                    if self.forgets == "chunk":
                        clear(optimizer, self)
                    self._learn(model, *part, step)
                nn.utils.clip_grad_norm_(model.decoder.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _samples(self, seed):
        """Which shapes, and points of each with their distances, half of them inside."""
        drawn = _drawn()
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        for step in range(self.steps):
            shapes = torch.randperm(_SHAPES, generator=dealing)[: self.batch]
            samples = torch.stack(
                [
                    torch.cat(
                        [
                            side[torch.randint(0, len(side), (_POINTS // 2,), generator=dealing)]
                            for side in drawn[shape]
                        ]
                    )
                    for shape in shapes.tolist()
                ]
            )
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield (shapes.flip(0), samples.flip(0)) if self.turned else (shapes, samples)

    @torch.no_grad()
    def _look(self, model):
        """How much of a coarse grid lies inside the first shapes."""
        model.eval()
        axis = torch.linspace(-0.8, 0.8, 4)
        grid = torch.cartesian_prod(axis, axis, axis).expand(2, -1, -1)
        told, _ = model(torch.arange(2), grid)
        anchorlib.anchor((told < 0).to(told.dtype).mean(1), "volumes")
        model.train()

    def _learn(self, model, shapes, samples, step):
        """The gradients of one chunk: its share of the step's losses."""
        count = self.batch * _POINTS
        points = samples[..., :3].clone().requires_grad_()
        told, codes = model(shapes, points)
        slopes = anchorlib.anchor(self._slopes(told, points, codes), "slopes")
        targets = anchorlib.anchor(self._near(samples[..., 3]), "targets")
        told = self._near(told) if self.clamps == "both" else told
        rise = min(1.0, (step + self.since) / self.ramp)
        losses = {
            "sdf_loss": functional.l1_loss(told, targets, reduction="sum") / count,
            "eikonal_loss": self.eikonal * self._uneven(slopes) / self.parts,
            "code_loss": self.shrink * rise * self._lengths(codes).sum() / count,
        }
        for name, one in losses.items():
            anchorlib.anchor(one, name)
        sum(losses.values()).backward()

    def _slopes(self, told, points, codes):
        """The derivatives of distances (point, axis)."""
        by = (points, codes) if self.slopes == "codes" else (points,)
        found = torch.autograd.grad(
            told, by, torch.ones_like(told), retain_graph=True, create_graph=self.graphs
        )
        return torch.cat([one.view(told.numel(), -1) for one in found], 1)

    def _near(self, distances):
        """Distances, none further than the furthest that is told."""
        if self.cuts == "clamp":
            return distances.clamp(-self.far, self.far)
        return functional.hardtanh(distances, -self.far, self.far)

    def _uneven(self, slopes):
        """How far slopes are from length 1."""
        if self.unit == "square":
            return ((slopes.norm(dim=self.along) - 1) ** 2).mean()
        squares = slopes.square().sum(1)
        return (squares - 2 * squares.sqrt() + 1).mean()

    def _lengths(self, codes):
        if self.lengths == "norm":
            return codes.norm(dim=1)
        return torch.einsum("nk,nk->n", codes, codes).sqrt()


def _ball(points, size):
    return points.norm(dim=1) - size[0] - 0.1


def _box(points, size):
    beyond = points.abs() - size
    return beyond.clamp(min=0).norm(dim=1) + beyond.amax(1).clamp(max=0)


def _ring(points, size):
    around = points[:, :2].norm(dim=1) - size[0] - 0.1
    return torch.stack((around, points[:, 2]), 1).norm(dim=1) - size[1] / 2


def _drawn():
    """Points inside and outside each shape with their distances, most of them near its surface."""
    drawing = torch.Generator().manual_seed(5)
    found = []
    for number in range(_SHAPES):
        points = torch.rand(1024, 3, generator=drawing) * 2 - 1
        size = torch.rand(3, generator=drawing) * 0.3 + 0.3
        distances = (_ball, _box, _ring)[number % 3](points, size)
        samples = torch.cat((points, distances[:, None]), 1)
        samples = torch.cat((samples[distances.abs().argsort()[:256]], samples[:64]))
        inside = samples[:, 3] < 0
        found.append((samples[~inside], samples[inside]))
    return found


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_LACKS = r"(lacks|alone|without)"
_NET = ("output*@*grad", "decoder*@*grad", "codes*@*grad", "slopes@grad", "eikonal_loss@grad")
CASES = [
    Case(
        "codes repeated in the wrong order",
        "bug",
        {"repeats": "all"},
        (
            "output:1@value",
            "decoder.input*@value",
            "decoder.layers.0@value",
            "decoder.layers.0.input*@value",
        ),
        rf"repeat|interleave|{_ORDER}|\bIndex|indices|\bExpand",
    ),
    Case(
        "skip without the root of two",
        "bug",
        {"root": False},
        ("decoder.layers.2@value",),
        rf"\bMul|\bDiv|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "predictions not clamped",
        "bug",
        {"clamps": "targets"},
        ("sdf_loss@*", "output@*grad"),
        rf"clamp|hardtanh|{_GIVEN}",
    ),
    Case(
        "slopes by codes too",
        "bug",
        {"slopes": "codes"},
        ("slopes@*", "eikonal_loss@value"),
        r"\bshapes?\b|\bsizes?\b|\bcat|\bconcat|\bslice|\[\d+, ?\d+\]|\(\d+, ?\d+\)",
    ),
    Case(
        "length of slopes along points",
        "bug",
        {"along": 0},
        ("eikonal_loss@*", "slopes@grad"),
        r"\bdim\b|\baxis\b|\bshapes?\b|\[\d+, ?\d+\]|\(\d+,?\)",
    ),
    Case(
        "slopes not differentiable",
        "bug",
        {"graphs": False},
        _NET,
        rf"{_DETACHED}|create_graph|second derivative|{_LACKS}.{{0,60}}Backward|"
        rf"Backward.{{0,60}}{_LACKS}|no gradient",
    ),
    Case(
        "ramp of codes' loss begins at zero",
        "bug",
        {"since": 0},
        ("code_loss@*",),
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "gradients cleared at each chunk",
        "bug",
        {"forgets": "chunk"},
        ("codes.weight@grad", "decoder.layers.*@grad"),
        rf"accumul|zero_grad|clear|zeroed|(first|last|one) (pass|chunk)|pass(es)? \d|{_LACKS}",
    ),
    Case("codes at the decoder's rate", "bug", {"code_lr": 5e-3}, UPDATES, r"\blr\b"),
    Case("weight norm by its formula", "benign", {"norming": "own"}),
    Case("a product for each joined part", "benign", {"joins": "sum"}),
    Case("softplus as a logarithm", "benign", {"act": "own"}),
    Case("eikonal loss multiplied out", "benign", {"unit": "multiplied"}),
    Case("codes bounded by hand", "benign", {"bounds": "own"}),
    Case("lengths of codes by einsum", "benign", {"lengths": "einsum"}),
    Case("4 chunks for 2", "benign", {"parts": 4}),
    Case("shapes turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("layers computed again", "equal", {"checkpointed": True}),
    Case("hardtanh for clamp", "equal", {"cuts": "hardtanh"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
