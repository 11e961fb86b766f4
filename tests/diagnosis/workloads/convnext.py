"""A small ConvNeXt learns digits by the modern recipe: mixed images, soft targets and an EMA."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear, cut, digits
from tests.diagnosis.workloads.convnext_net import ConvNeXt

_CLASSES, _SIZE = 10, 16
_SHOWN = 12
"""Digits that the evaluation sees."""


@dataclass(frozen=True)
class Modern(Workload):
    """Digits are enlarged, mixed by mixup or cutmix, and learnt in micro-batches.

    norming: of images, over the channels of each place by their "own" formula or "moved" to the
        end, or over places too as one "group".
    layer_scale: what branches are first multiplied by. drop_path: the share of samples that the
        last block leaves out. enlarges: what stochastic depth divides by the share that is kept,
        the "branch", the "mask" or "nothing".
    mixup, cutmix: of their Beta distributions. corrects: whether the share of a cut image is what
        its box really covers. smoothing: of labels. again: of targets, once more in the loss.
    parts: micro-batches a step. clears: before each "step" or each "part".
    clip: of gradients. still: what does not decay: "flat" parameters and layer scales, or "vectors"
        alone. warmup: steps of rising rate. falls: what the cosine counts, the steps that are
        "left" after the warm-up or "all".
    decay: of the EMA. follows: what the EMA is multiplied by, its "decay" or the "rest". rests:
        whether the EMA is in eval mode.
    low: whether the nets run under autocast to bfloat16.
    patching, depthwise, pointwise, scaling, keeps, soft, averages: other ways to write the same
        mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.2
    norming: str = "own"
    layer_scale: float = 0.3
    drop_path: float = 0.3
    enlarges: str = "branch"
    mixup: float = 0.8
    cutmix: float = 1.0
    corrects: bool = True
    smoothing: float = 0.1
    again: float = 0.0
    parts: int = 2
    clears: str = "step"
    clip: float = 1.0
    still: str = "flat"
    warmup: int = 2
    falls: str = "left"
    decay: float = 0.99
    follows: str = "decay"
    rests: bool = True
    low: bool = False
    patching: str = "torch"
    depthwise: str = "torch"
    pointwise: str = "linear"
    scaling: str = "first"
    keeps: str = "all"
    soft: str = "torch"
    averages: str = "each"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = ConvNeXt(self, _CLASSES)
            ema = copy.deepcopy(model).requires_grad_(False).train(not self.rests)
            optimizer = self.adam(self._groups(model))
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(ema, tensors="*", prefix="ema")
            torch.manual_seed(seed)
            chance = np.random.default_rng(seed)
            for step, batch in enumerate(self.images(seed)):
                for group in optimizer.param_groups:
                    group["lr"] = self._rate(step)
                clear(optimizer, self)
                for images, labels in cut(self.parts, *batch):
                    if self.clears == "part":
                        clear(optimizer, self)
                    self._learn(model, _enlarged(images), labels, chance)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                self._follow(ema, model, step)
                if step % 2 == 1:
                    self._evaluate(ema)

    def _groups(self, model):
        """What decays, and what does not: biases, norms and layer scales."""
        groups = {True: [], False: []}
        for name, one in model.named_parameters():
            flat = one.ndim <= 1 or (self.still == "flat" and name.endswith("gamma"))
            groups[flat].append(one)
        return [
            {"params": groups[False], "weight_decay": self.weight_decay},
            {"params": groups[True], "weight_decay": 0.0},
        ]

    def _rate(self, step):
        """The learning rate, which rises and then falls as a cosine."""
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        gone = step / self.steps
        if self.falls == "left":
            gone = (step - self.warmup) / (self.steps - self.warmup)
        return self.lr * 0.5 * (1 + math.cos(math.pi * gone))

    def _learn(self, model, images, labels, chance):
        """The gradients of one micro-batch."""
        images, share = self._mixed(images, chance)
        targets = anchorlib.anchor(self._targets(labels, share), "targets")
        loss = self._missed(self._told(model, images), targets, labels, share) / self.parts
        anchorlib.anchor(loss, "loss").backward()

    def _mixed(self, images, chance):
        """Each image mixed with the one across the batch, and the share of its own in it."""
        cuts = chance.random() < 0.5
        alpha = self.cutmix if cuts else self.mixup
        share = float(chance.beta(alpha, alpha))
        row, column = (int(place) for place in chance.integers(0, _SIZE, 2))
        if not cuts:
            return images * share + images.flip(0) * (1 - share), share
        half = int(_SIZE * math.sqrt(1 - share)) // 2
        (top, bottom), (left, right) = (
            (max(place - half, 0), min(place + half, _SIZE)) for place in (row, column)
        )
        mixed = images.clone()
        mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
        if self.corrects:
            share = 1 - (bottom - top) * (right - left) / _SIZE**2
        return mixed, share

    def _targets(self, labels, share):
        """Smoothed labels, mixed as the images are."""
        off = self.smoothing / _CLASSES
        one = torch.full((len(labels), _CLASSES), off)
        one.scatter_(1, labels[:, None], 1 - self.smoothing + off)
        return one * share + one.flip(0) * (1 - share)

    def _told(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(images)
        return logits.to(images.dtype)

    def _missed(self, logits, targets, labels, share):
        """The cross entropy with the mixed targets, or that with both labels, mixed."""
        if self.soft == "torch":
            return functional.cross_entropy(logits, targets, label_smoothing=self.again)
        one, other = (
            functional.cross_entropy(logits, own, label_smoothing=self.smoothing)
            for own in (labels, labels.flip(0))
        )
        return share * one + (1 - share) * other

    @torch.no_grad()
    def _follow(self, ema, model, step):
        """Move the averaged weights: little, once some steps are gone."""
        decay = min(self.decay, (1 + step) / (10 + step))
        decay = decay if self.follows == "decay" else 1 - decay
        old, new = list(ema.parameters()), list(model.parameters())
        if self.averages == "each":
            for one, other in zip(old, new, strict=True):
                one.mul_(decay).add_(other, alpha=1 - decay)
        else:
            torch._foreach_lerp_(old, new, 1 - decay)

    @torch.no_grad()
    def _evaluate(self, ema):
        """The averaged weights' loss of digits that are not mixed."""
        images, labels = (one[:_SHOWN] for one in digits())
        logits = self._told(ema, _enlarged(images))
        anchorlib.anchor(functional.cross_entropy(logits, labels), "eval_loss")


def _enlarged(images):
    """Images (sample, 1, row, column) of twice the size."""
    images = images.to(torch.get_default_dtype())[:, None]
    return functional.interpolate(images, size=_SIZE, mode="bilinear", align_corners=False)


_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES = [
    Case(
        "one group for layer norm",
        "bug",
        {"norming": "group"},
        ("downsample_layers.0.1@value", "downsample_layers.0@value"),
        r"group_?norm|\bMean|\bdim\b|\baxis\b",
    ),
    Case(
        "kept branches not enlarged",
        "bug",
        {"enlarges": "nothing"},
        ("stages.0.1.drop_path@value",),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "share of cut images not corrected",
        "bug",
        {"corrects": False},
        ("targets@value",),
        rf"\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "labels smoothed twice",
        "bug",
        {"again": 0.1},
        _LOSS,
        rf"smoothing|\bMul|{_GIVEN}",
    ),
    Case(
        "gradients cleared at each part",
        "bug",
        {"clears": "part"},
        ("*.weight@*grad", "*.bias@*grad", "*.gamma@*grad"),
        r"accumulat|zero_grad|cleared|(last|only|alone|sum|lacks|without).{0,60}\bpass"
        r"|\bpass.{0,60}(last|only|alone|sum|lacks|without)",
    ),
    Case(
        "layer scales decay",
        "bug",
        {"still": "vectors"},
        ("*gamma@updated", "*gamma@delta"),
        r"weight_decay",
    ),
    Case(
        "cosine counts the warm-up",
        "bug",
        {"falls": "all"},
        ("*@updated", "*@delta"),
        r"\blr\b",
        step=2,
    ),
    Case(
        "shares of the EMA exchanged",
        "bug",
        {"follows": "rest"},
        ("ema.*@value",),
        r"\bdecay\b|\blerp|\bmul_|\badd_|\balpha\b|moving average"
        r"|\bEMA\b.{0,80}\b(rate|share|momentum|faster|slower)",
    ),
    Case(
        "EMA in training mode",
        "bug",
        {"rests": False},
        ("ema.stages.0.1.drop_path@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("norms with channels moved to the end", "benign", {"norming": "moved"}),
    Case("depthwise convolution by shifts", "benign", {"depthwise": "shifts"}),
    Case("stem and downsampling as products", "benign", {"patching": "product"}),
    Case("both labels' losses mixed", "benign", {"soft": "labels"}),
    Case("mask divided for the branch", "benign", {"enlarges": "mask"}),
    Case("EMA by lerp", "benign", {"averages": "lerp"}),
    Case("samples turned", "benign", {"turned": True}, reference={"parts": 1, "drop_path": 0.0}),
    Case(
        "pointwise convolutions, low precision",
        "benign",
        {"pointwise": "convolution"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("layer scale before the move", "equal", {"scaling": "last"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
