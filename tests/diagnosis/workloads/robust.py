"""Classification that withstands attacks (TRADES): a divergence between clean and attacked."""

from __future__ import annotations

import copy
from dataclasses import dataclass

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
    digits,
)
from tests.diagnosis.workloads.robust_net import Net

_CLASSES = 10
_SHOWN = 12
"""Images that the evaluation sees."""
_CYCLE = 8
"""Steps of the whole cycle of the rate."""


@dataclass(frozen=True)
class Robust(Workload):
    """Images are attacked by projected ascent; outputs should be right, and stay what they were.

    epsilon: how far an attack may move a pixel. stride, ascents: of the attack.
    attacks: the mode of the net in the attack, "eval" or "train". wakes: whether the net is in
        training mode again after the attack. projects: whether each ascent ends inside the ball.
    slopes: how the attack differentiates, by "grad", by "grad" with parameters "frozen", or by a
        "backward" that leaves gradients in the parameters.
    beta: the weight of the divergence. towards: what is diverged from, the "clean" outputs or the
        "attacked" ones. reduction: of the divergence. flows: whether its gradient reaches the
        clean outputs. smoothing: of labels.
    shortens: what a shortcut's convolution is given, the "active" input or the "plain" one.
    cycles: whether the momentum cycles against the rate.
    decay: of the average of weights. copies: whether the average takes running statistics over.
    ascended, moved, divergence, smoothed, rested, act, layout, averaged: other ways to write the
        same mathematics.
    """

    lr: float = 0.2
    weight_decay: float = 5e-4
    epsilon: float = 0.2
    stride: float = 0.1
    ascents: int = 3
    attacks: str = "eval"
    wakes: bool = True
    projects: bool = True
    slopes: str = "grad"
    beta: float = 6.0
    towards: str = "clean"
    reduction: str = "batchmean"
    flows: bool = True
    smoothing: float = 0.1
    shortens: str = "active"
    cycles: bool = False
    decay: float = 0.995
    copies: bool = True
    ascended: str = "divergence"
    moved: str = "images"
    act: str = "torch"
    layout: torch.memory_format = torch.contiguous_format
    divergence: str = "torch"
    smoothed: str = "torch"
    rested: str = "torch"
    averaged: str = "in place"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self).to(memory_format=self.layout)
            average = copy.deepcopy(model).eval().requires_grad_(False)
            optimizer = self.sgd(self._groups(model), nesterov=True)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer,
                self.lr,
                _CYCLE,
                pct_start=0.25,
                anneal_strategy="linear",
                cycle_momentum=self.cycles,
                div_factor=5,
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average, tensors="*", prefix="average")
            torch.manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                clear(optimizer, self)
                self._learn(model, *self._shifted(images), labels)
                optimizer.step()
                schedule.step()
                self._average(average, model, step)
                if step % 2 == 1:
                    self._evaluate(average)

    def _groups(self, model):
        """What decays, and what does not: norms and biases."""
        parameters = list(model.parameters())
        return [
            {"params": [one for one in parameters if one.ndim > 1]},
            {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
        ]

    def _shifted(self, images):
        """Images moved by up to a pixel, and where their attacks begin in the ball."""
        count = len(images)
        offsets = torch.randint(0, 3, (count, 2))
        noise = torch.empty(count, 1, 8, 8).uniform_(-1, 1)
        if self.turned:
            offsets, noise = offsets.flip(0), noise.flip(0)
        padded = functional.pad(_pixels(images), (1, 1, 1, 1))
        moved = [
            one[:, row : row + 8, column : column + 8]
            for one, (row, column) in zip(padded, offsets.tolist(), strict=True)
        ]
        return torch.stack(moved), noise

    def _learn(self, model, images, noise, labels):
        """The gradients of a batch."""
        model.train(self.attacks == "train")
        images = images.contiguous(memory_format=self.layout)
        attacked = self._attacked(model, images, noise)
        anchorlib.anchor(attacked, "adversarial", grad=False)
        model.train(self.wakes)
        clean, moved = model(images), model(attacked)
        natural = self._natural(clean, labels)
        robust = self._robust(moved, clean if self.flows else clean.detach())
        loss = natural + self.beta * robust
        for one, name in ((natural, "natural_loss"), (robust, "robust_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _attacked(self, model, images, noise):
        """Images near by, whose outputs are far from those of the clean images."""
        with torch.no_grad():
            clean = model(images).softmax(1)
        moved = (images + self.epsilon * noise).clamp(0, 1)
        model.requires_grad_(self.slopes != "frozen")
        for _ in range(self.ascents):
            moved.requires_grad_()
            far = self._far(model(moved), clean)
            if self.slopes == "backward":
                far.backward()
                slope = moved.grad
            else:
                (slope,) = torch.autograd.grad(far, moved)
            moved = self._stepped(moved.detach(), images, self.stride * slope.sign())
        model.requires_grad_(True)
        return moved

    def _far(self, logits, clean):
        """What the attack ascends; the entropy of the clean outputs is constant to it."""
        if self.ascended == "divergence":
            return functional.kl_div(logits.log_softmax(1), clean, reduction="sum")
        return functional.cross_entropy(logits, clean, reduction="sum")

    def _stepped(self, moved, images, by):
        """One step of the ascent, projected on the ball and on what pixels can be."""
        if self.moved == "perturbations":
            change = (moved - images + by).clamp(-self.epsilon, self.epsilon)
            return (images + change).clamp(0, 1)
        moved = moved + by
        if self.projects:
            moved = torch.max(moved, images - self.epsilon)
            moved = torch.min(moved, images + self.epsilon)
        return moved.clamp(0, 1)

    def _natural(self, logits, labels):
        """The loss of the clean images."""
        if self.smoothed == "torch":
            return functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        wanted = torch.full_like(logits, self.smoothing / _CLASSES)
        wanted.scatter_(1, labels[:, None], 1 - self.smoothing + self.smoothing / _CLASSES)
        return -(wanted * logits.log_softmax(1)).sum(1).mean()

    def _robust(self, attacked, clean):
        """How far the outputs of attacked images are from those of the clean ones."""
        told, wanted = (attacked, clean) if self.towards == "clean" else (clean, attacked)
        if self.divergence == "torch":
            return functional.kl_div(
                told.log_softmax(1), wanted.softmax(1), reduction=self.reduction
            )
        own, other = wanted.log_softmax(1), told.log_softmax(1)
        return (own.exp() * (own - other)).sum(1).mean()

    @torch.no_grad()
    def _average(self, average, model, step):
        """Move the average towards the weights, in the first steps the faster."""
        decay = min(self.decay, (1 + step) / (10 + step))
        kept, new = list(average.parameters()), list(model.parameters())
        if self.averaged == "lerp":
            torch._foreach_lerp_(kept, new, 1 - decay)
        else:
            for one, other in zip(kept, new, strict=True):
                one.mul_(decay).add_(other, alpha=1 - decay)
        if self.copies:
            for one, other in zip(average.buffers(), model.buffers(), strict=True):
                one.copy_(other)

    def _evaluate(self, average: nn.Module):
        """The averaged net's losses of images that are not drawn, clean and after one step."""
        images, labels = digits()
        images, labels = _pixels(images[-_SHOWN:]).requires_grad_(), labels[-_SHOWN:]
        clean = functional.cross_entropy(average(images), labels)
        anchorlib.anchor(clean, "eval_loss", grad=False)
        (slope,) = torch.autograd.grad(clean, images)
        with torch.no_grad():
            attacked = (images + self.epsilon * slope.sign()).clamp(0, 1)
            anchorlib.anchor(
                functional.cross_entropy(average(attacked), labels), "eval_robust_loss"
            )


def _pixels(images):
    """Pixels of 0 to 1 (sample, 1, 8, 8)."""
    return ((images + 1) / 2)[:, None].to(torch.get_default_dtype())


_ROBUST = ("robust_loss@*", "loss@*", "output*@grad", "head@grad")
_ATTACK = ("adversarial@value", "input*@value")
_NORM = (
    "blocks.0.norm1@value",
    "blocks.0.norm1.running*@value",
    "blocks.0.norm1.num_batches_tracked@value",
)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_MODE = r"eval mode|train(ing)? mode|training (True|False)|\beval\b"
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "divergence the other way",
        "bug",
        {"towards": "attacked"},
        _ROBUST,
        rf"\b(log_?)?softmax|kl_?div|xlogy|exchanged|swapped|{_GIVEN}",
    ),
    Case(
        "divergence averaged over classes",
        "bug",
        {"reduction": "mean"},
        _ROBUST,
        rf"reduction|batch_?mean|\bMean|\bDiv|{_TIMES}",
    ),
    Case(
        "clean outputs detached",
        "bug",
        {"flows": False},
        ("output*@grad", "head@grad", "head.*@*grad"),
        rf"{_DETACHED}|softmax\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}softmax",
    ),
    Case("attack in training mode", "bug", {"attacks": "train"}, _NORM, _MODE),
    Case("still in eval mode", "bug", {"wakes": False}, _NORM, _MODE),
    Case(
        "attack not projected",
        "bug",
        {"projects": False},
        _ATTACK,
        r"\bclamp|\bclip|\bmaximum|\bminimum|\bmax\b|\bmin\b|project",
    ),
    Case(
        "gradients of the attack left over",
        "bug",
        {"slopes": "backward"},
        ("*weight@*grad", "*bias@*grad"),
        r"zero_grad|accumulat|not (cleared|zeroed|reset)|left over|added up|sum of|backward|pass",
    ),
    Case(
        "shortcut of the plain input",
        "bug",
        {"shortens": "plain"},
        ("blocks.1.shortcut@value", "blocks.1.shortcut.input*@value"),
        rf"\bsilu|norm1|computes it from|another (input|tensor)|{_GIVEN}",
    ),
    Case("momentum cycles", "bug", {"cycles": True}, UPDATES, r"momentum"),
    Case(
        "average without running statistics",
        "bug",
        {"copies": False},
        (
            "average.*running*@value",
            "average.*num_batches_tracked@value",
            "average.blocks.0.norm1@value",
        ),
        r"running_(mean|var)|num_batches_tracked|\bbuffers?\b|never (updated|changes|written)",
        step=1,
    ),
    Case("perturbations for images", "benign", {"moved": "perturbations"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("swish by hand", "benign", {"act": "own"}),
    Case("divergence by hand", "benign", {"divergence": "own"}),
    Case("labels smoothed by hand", "benign", {"smoothed": "own"}),
    Case("norms at rest as scale and shift", "benign", {"rested": "affine"}),
    Case("average by lerp", "benign", {"averaged": "lerp"}),
    Case("samples turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("soft cross-entropy ascended", "equal", {"ascended": "cross-entropy"}),
    Case("parameters frozen in the attack", "equal", {"slopes": "frozen"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
