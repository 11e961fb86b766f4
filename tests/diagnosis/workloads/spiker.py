"""A spiking net on digits: leaky membranes, thresholds, and gradients of a smoother step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    cut,
    warmed,
)

_TIMES_SEEN = 8
"""How often an image is shown, each time with other spikes."""
_WIDTHS = (64, 32, 24)


@dataclass(frozen=True)
class Spiker(Workload):
    """Pixels spike the more the brighter they are; two layers of membranes, and ten that do not.

    draws: how spikes of pixels are drawn, "anew" each time or "once".
    threshold: of membranes. resets: what a spike does to its membrane, "subtracts" the threshold
        or makes it "zero". leaks: what loses a share each time, the "membrane" or its
        "sum" with what comes in. forgets: whether membranes are empty when a batch begins.
    reads: the logits, a "sum" over time, a "mean" or the "last". keeps: the share that readouts
        keep from time to time.
    slope: of the smoother step. shifts: whether its middle is the threshold. powers: the power in
        its derivative. reset_path: whether resets are "detached". window: times after which
        membranes are detached.
    softmax: whether logits are chances already. rate: the weight of the spikes' penalty. aim: the
        share of spikes that costs nothing. counted: spikes are a "mean" over time or a "sum".
    own_decay: whether leaks decay too. clip: of gradients. clears: whether they are forgotten.
    warmup: steps of rising rate.
    parts: micro-batches a step.
    currents, linear, leak, surrogate, squash, cost, readout, penalty, clips, scale, idle: other
        ways to write the same mathematics.
    """

    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.05
    draws: str = "anew"
    threshold: float = 1.0
    resets: str = "subtracts"
    leaks: str = "membrane"
    forgets: bool = True
    reads: str = "sum"
    keeps: float = 0.8
    slope: float = 5.0
    shifts: bool = True
    powers: int = 2
    reset_path: str = "detached"
    window: int = 4
    softmax: bool = False
    rate: float = 2.0
    aim: float = 0.15
    counted: str = "mean"
    own_decay: bool = False
    clip: float = 1.0
    clears: bool = True
    warmup: int = 2
    parts: int = 1
    currents: str = "one by one"
    linear: str = "torch"
    leak: str = "product"
    surrogate: str = "function"
    squash: str = "torch"
    cost: str = "torch"
    readout: str = "time by time"
    penalty: str = "own"
    clips: str = "torch"
    scale: float = 1.0
    idle: str = "nothing"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 12)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                if self.clears:
                    clear(optimizer, self)
                spikes = anchorlib.anchor(self._coded(images.flatten(1)), "pixels")
                for part, own in cut(self.parts, spikes.transpose(0, 1), labels):
                    self._learn(model, part.transpose(0, 1), own, len(labels))
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """Weights, which decay, and leaks and biases, which do not."""
        flat = self.weight_decay if self.own_decay else 0.0
        return [
            {
                "params": [one for one in model.parameters() if (one.ndim < 2) is small],
                "weight_decay": flat if small else self.weight_decay,
            }
            for small in (False, True)
        ]

    def _coded(self, pixels):
        """Spikes of pixels (time, sample, pixel)."""
        times = _TIMES_SEEN if self.draws == "anew" else 1
        drawn = torch.rand(times, *pixels.shape).expand(_TIMES_SEEN, -1, -1)
        drawn = drawn.flip(1) if self.turned else drawn
        return (drawn < (pixels + 1) / 2).to(pixels.dtype)

    def _learn(self, model, spikes, labels, count):
        """The gradients of one micro-batch."""
        logits, heard = model(spikes)
        logits = anchorlib.anchor(logits, "logits")
        share = len(labels) / count
        losses = {
            "class_loss": share * self._missed(logits, labels),
            "rate_loss": share * self.rate * self._loud(heard),
        }
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        (loss * self.scale).backward()

    def _missed(self, logits, labels):
        """The cross entropy."""
        logits = logits.softmax(1) if self.softmax else logits
        if self.cost == "torch":
            return functional.cross_entropy(logits, labels)
        right = functional.one_hot(labels, 10).to(logits.dtype)
        return (logits.logsumexp(1) - (logits * right).sum(1)).mean()

    def _loud(self, heard):
        """By how much neurons spike more or less often than they should."""
        if self.penalty == "own":
            axis = [one.mean(0) if self.counted == "mean" else one.sum(0) for one in heard]
            return sum((one - self.aim).square().mean() for one in axis)
        wanted = [torch.full_like(one[0], self.aim) for one in heard]
        told = [sum(one.unbind(0)) / len(one) for one in heard]
        return sum(functional.mse_loss(*pair) for pair in zip(told, wanted, strict=True))

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        for grad in grads:
            grad.div_(self.scale)
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            length = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
            for grad in grads:
                grad.div_(((length + 1e-6) / self.clip).clamp(min=1))


class Step(torch.autograd.Function):
    """One above nought, else nothing; its gradient is that of a smoother step."""

    @staticmethod
    def forward(ctx, over, slope, powers, shift):
        """The spikes."""
        ctx.save_for_backward(over)
        ctx.known = slope, powers, shift
        return (over > 0).to(over.dtype)

    @staticmethod
    def backward(ctx, grad):
        """The gradient of x / (1 + slope |x|), where that is the smoother step."""
        (over,) = ctx.saved_tensors
        slope, powers, shift = ctx.known
        return grad / (1 + slope * (over + shift).abs()) ** powers, None, None, None


class Cells(nn.Module):
    """Membranes that leak, spike above a threshold, and are lowered by their spikes."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how = how
        self.leak = nn.Parameter(torch.randn(width) * 0.3 + 1.5)
        self.membrane = None

    def forward(self, current):
        """The spikes of one time."""
        how, before = self.how, self.membrane
        before = torch.zeros_like(current) if before is None else before
        now = anchorlib.anchor(self._leaked(before, current), "membrane")
        over = now - how.threshold
        spikes = self._spikes(over)
        lost = spikes.detach() if how.reset_path == "detached" else spikes
        self.membrane = (
            now - how.threshold * lost if how.resets == "subtracts" else now * (1 - lost)
        )
        return spikes

    def _leaked(self, before, current):
        kept = self.leak.sigmoid() if self.how.squash == "torch" else 1 / (1 + (-self.leak).exp())
        if self.how.leaks == "sum":
            return (before + current) * kept
        if self.how.leak == "product":
            return before * kept + current
        return torch.addcmul(current, before, kept)

    def _spikes(self, over):
        how = self.how
        if how.surrogate == "function":
            return Step.apply(over, how.slope, how.powers, 0.0 if how.shifts else how.threshold)
        smooth = over / (1 + how.slope * over.abs())
        return (over > 0).to(over.dtype) + (smooth - smooth.detach())


class Linear(nn.Linear):
    """A linear layer, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """The layer's sums."""
        if self.way == "sums":
            return (x[..., None, :] * self.weight).sum(-1) + self.bias
        return super().forward(x)


class Net(nn.Module):
    """Two layers of cells, and potentials that add up what the second one says."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList(Linear(into, out) for into, out in pairwise(_WIDTHS))
        self.cells = nn.ModuleList(Cells(how, width) for width in _WIDTHS[1:])
        self.out = nn.Linear(_WIDTHS[-1], 10)
        for layer in self.layers:
            layer.way = how.linear
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.mul_(3)

    def forward(self, pixels):
        """Logits, and the spikes of both layers (time, sample, cell)."""
        how = self.how
        for cells in self.cells:
            cells.membrane = None if how.forgets else _apart(cells.membrane)
        first = self.layers[0](pixels) if how.currents == "at once" else None
        told = []
        for time, spikes in enumerate(pixels):
            if time and time % how.window == 0:
                for cells in self.cells:
                    cells.membrane = cells.membrane.detach()
            current = self.layers[0](spikes) if first is None else first[time]
            one = self.cells[0](current)
            if how.idle == "dropout":
                one = functional.dropout(one, 0.0)
            told.append((one, self.cells[1](self.layers[1](one))))
        heard = [torch.stack(one) for one in zip(*told, strict=True)]
        return self._read(heard[-1]), heard

    def _read(self, spikes):
        """Potentials that leak, summed over time."""
        how, potential, found = self.how, 0.0, []
        if how.readout == "at once":
            left = torch.arange(_TIMES_SEEN, 0, -1, dtype=spikes.dtype)
            shares = (1 - how.keeps**left) / (1 - how.keeps)
            summed = torch.tensordot(shares, spikes, 1)
            return summed @ self.out.weight.T + self.out.bias * shares.sum()
        for one in spikes:
            potential = how.keeps * potential + self.out(one)
            found.append(potential)
        if how.reads == "last":
            return potential
        return sum(found) if how.reads == "sum" else sum(found) / len(found)


def _apart(membrane):
    return None if membrane is None else membrane.detach()


_MEMBRANE = ("membrane@value",)
_SPIKES = ("cells.0@value", "layers.1.input@value")
_BACK = ("membrane@grad", "layers.*@*grad", "cells.*@*grad")
_LOGITS = ("logits@value", "output@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "threshold of a half",
        "bug",
        {"threshold": 0.5},
        (*_SPIKES, *_MEMBRANE),
        rf"threshold|\bSub(Backward|\b)|\b0\.5\b|{_GIVEN}",
    ),
    Case(
        "membranes begin again at nought",
        "bug",
        {"resets": "zero"},
        _MEMBRANE,
        rf"\bSub(Backward|\b)|\bMul(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "what comes in leaks too",
        "bug",
        {"leaks": "sum"},
        _MEMBRANE,
        rf"\bAdd(Backward|\b)|\bMul(Backward|\b)|a factor of its own|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "potentials do not leak",
        "bug",
        {"keeps": 1.0},
        _LOGITS,
        rf"\bMul(Backward|\b)|\b0\.8\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "membranes kept from batch to batch",
        "bug",
        {"forgets": False},
        _MEMBRANE,
        rf"earlier steps?|step before|previous step|carried|\bstate\b|\bzeros?\b|{_GIVEN}",
        step=1,
    ),
    Case(
        "last potential alone",
        "bug",
        {"reads": "last"},
        _LOGITS,
        rf"\bAdd(Backward|\b)|\bSum(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "potentials as a mean",
        "bug",
        {"reads": "mean"},
        _LOGITS,
        rf"\bDiv(Backward|\b)|\bMean|{_TIMES}",
    ),
    Case(
        "softmax before the cross entropy",
        "bug",
        {"softmax": True},
        ("class_loss@*", "logits@grad", "output@grad"),
        r"(?<![Ll]og)(?<![Ll]og_)[Ss]oftmax",
    ),
    Case(
        "spikes counted, not averaged",
        "bug",
        {"counted": "sum"},
        ("rate_loss@*", "output:1.*@grad"),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "surrogate without its square",
        "bug",
        {"powers": 1},
        _BACK,
        r"Step(Backward|\b)|powers",
    ),
    Case(
        "surrogate around nought",
        "bug",
        {"shifts": False},
        _BACK,
        r"Step(Backward|\b)|shift",
    ),
    Case("resets attached", "bug", {"reset_path": "attached"}, _BACK, _DETACHED),
    Case("not truncated", "bug", {"window": 8}, _BACK, _DETACHED),
    Case("leaks and biases decay", "bug", {"own_decay": True}, UPDATES, r"weight_decay"),
    Case(
        "gradients not cleared",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|not (cleared|zeroed)|earlier steps?|step before|previous step",
        step=1,
    ),
    Case("all currents at once", "benign", {"currents": "at once"}),
    Case("currents by sums", "benign", {"linear": "sums"}),
    Case("leak by addcmul", "benign", {"leak": "addcmul"}),
    Case("straight-through spikes", "benign", {"surrogate": "straight"}),
    Case("sigmoid by its formula", "benign", {"squash": "own"}),
    Case("cross entropy by logsumexp", "benign", {"cost": "own"}),
    Case("potentials by their kernel", "benign", {"readout": "at once"}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("digits turned", "benign", {"turned": True}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value", "*leak@value")),
    Case("pixels' spikes drawn once", "data", {"draws": "once"}, ("pixels@value", "input*@value")),
    Case("penalty by torch", "equal", {"penalty": "torch"}),
    Case("dropout of nothing", "equal", {"idle": "dropout"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
