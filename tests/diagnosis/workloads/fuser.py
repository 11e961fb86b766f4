"""Two modalities of digits, rows and patches: fused by a gate, either of them dropped at times."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    Start,
    Workload,
    clear,
    cut,
    digits,
    warmed,
)
from tests.diagnosis.workloads.modalities import Fused

_SHOWN = 12
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Fuser(Workload):
    """A focal loss of the fused logits and of each modality's own, over micro-batches.

    lines: what the GRU reads, "rows" or "columns". reads: the state that is read, -1: the last.
    starts: how its weights begin, "orthogonal" or "plain". thaws: whether patches are learnt.
    gates: the gate's way round, "rightly" or "turned". share: what makes it, a "sigmoid", a
        "softmax" of two, or a softmax over the "batch". gated: what it sees, both modalities
        "joined", "apart" or "detached".
    missing: the share of samples that lack a modality. lacks: which one is dropped, the "drawn" one
        or the "other" one. drawn: whether modalities are drawn for each "sample" or for the "part".
        blind: whether they are dropped in the evaluation too.
    gamma: of the focal loss. eased: whether its factor's gradient flows. aux: the weight of the
        modalities' own losses. aux_detached: whether these leave modalities as they are.
    parts: micro-batches a step. shares: what their losses are divided by, the whole "batch" or the
        "part". forgets: when gradients are forgotten, before each "step" or "part".
    clip: of gradients. clips: after each "step" or "part". warmup: steps of rising rate. dropout:
        its share.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    recurrence, convolution, norming, fusion, focal, heads, backward: other ways to
        write the same mathematics.
    """

    steps: int = 5
    batch: int = 16
    lr: float = 1e-2
    weight_decay: float = 0.05
    lines: str = "rows"
    reads: int = -1
    starts: str = "orthogonal"
    thaws: bool = False
    gates: str = "rightly"
    share: str = "sigmoid"
    gated: str = "joined"
    missing: float = 0.4
    lacks: str = "drawn"
    drawn: str = "sample"
    blind: bool = False
    gamma: float = 2.0
    eased: bool = True
    aux: float = 0.3
    aux_detached: bool = False
    parts: int = 2
    shares: str = "batch"
    forgets: str = "step"
    clip: float = 0.5
    clips: str = "step"
    warmup: int = 3
    dropout: float = 0.1
    wakes: bool = True
    low: bool = False
    recurrence: str = "torch"
    convolution: str = "torch"
    norming: str = "torch"
    fusion: str = "sum"
    focal: str = "softmax"
    heads: str = "each"
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Fused(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            drawing = torch.Generator().manual_seed(23 + 1000 * seed)
            for step, batch in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(model, torch.Generator().manual_seed(5))
                kept = self._kept(len(batch[0]), drawing)
                clear(optimizer, self)
                for part in cut(self.parts, *batch, kept):
                    if self.forgets == "part":
                        clear(optimizer, self)
                    self._learn(model, part, batch[1])
                if self.clips == "step":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: biases and norms."""
        parameters = [one for one in model.parameters() if one.requires_grad]
        return [
            {"params": [one for one in parameters if one.ndim > 1]},
            {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
        ]

    def _kept(self, count, drawing):
        """The factors of both modalities of each sample: one of them is nought at times."""
        lacking = torch.rand(count, generator=drawing) < self.missing
        second = torch.rand(count, generator=drawing) < 0.5
        if self.drawn == "part":
            lacking, second = (one[:1].expand(count) for one in (lacking, second))
        if self.turned:
            lacking, second = lacking.flip(0), second.flip(0)
        which = torch.stack((~second, second), 1)
        which = which if self.lacks == "drawn" else ~which
        return (~(lacking[:, None] & which)).to(torch.get_default_dtype())

    @torch.no_grad()
    def _evaluate(self, model, drawing):
        """The loss of images that are not learnt from."""
        images, labels = (one[:_SHOWN] for one in digits())
        kept = self._kept(_SHOWN, drawing) if self.blind else torch.ones(_SHOWN, 2)
        model.eval()
        anchorlib.anchor(self._focal(model(images, kept)[0], labels).mean(), "eval_loss")
        model.train(self.wakes)

    def _learn(self, model, part, labels):
        """The gradients of one micro-batch."""
        images, named, kept = part
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = [one.to(images.dtype) for one in model(images, kept)]
        count = len(labels if self.shares == "batch" else named)
        if self.heads == "each":
            losses = [self._focal(logits, named).sum() / count for logits in told]
        else:
            joined = self._focal(torch.cat(told), named.repeat(3))
            losses = joined.view(3, -1).sum(1) / count
        main, *others = losses
        aux = self.aux * sum(others)
        for one, name in ((main, "main_loss"), (aux, "aux_loss"), (main + aux, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (main + aux).backward()
        else:
            main.backward(retain_graph=True)
            aux.backward()
        if self.clips == "part":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)

    def _focal(self, logits, labels):
        """The cross-entropy, the less the surer a sample is told."""
        if self.focal == "exp":
            missed = functional.cross_entropy(logits, labels, reduction="none")
            unsure = 1 - torch.exp(-missed)
        elif self.focal == "logsumexp":
            told = logits.gather(1, labels[:, None])[:, 0]
            missed = logits.logsumexp(1) - told
            unsure = 1 - torch.exp(told - logits.logsumexp(1))
        else:
            missed = -logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
            unsure = 1 - logits.softmax(1).gather(1, labels[:, None])[:, 0]
        unsure = unsure if self.eased else unsure.detach()
        weights = torch.linspace(0.5, 1.5, 10)[labels]
        return weights * unsure**self.gamma * missed


_READ = ("norm1@value", "norm1.input@value")
_GATED = ("gate@value", "drop.input@value", "drop@value")
_DROPPED = ("input:1@value", "gate.input*@value", "gate@value")
_MAIN = ("main_loss@*", "output@grad", "head@grad")
_LOSS = ("main_loss@*", "aux_loss@*", "loss@*", "eval_loss@*", "output*@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "columns for rows",
        "bug",
        {"lines": "columns"},
        ("rows@value", "rows.input@value"),
        rf"[Tt]ranspose|permute|{_ORDER}|{_GIVEN}",
        0,
    ),
    Case(
        "first state read",
        "bug",
        {"reads": 0},
        _READ,
        rf"\b[Ss]elect|\bindex|{_ORDER}|{_GIVEN}",
        0,
    ),
    Case(
        "recurrent weights not orthogonal",
        "data",
        {"starts": "plain"},
        ("rows.weight_hh*@value",),
        step=0,
    ),
    Case(
        "patches not frozen",
        "bug",
        {"thaws": True},
        ("patches.stem*@*", "patches.act@grad"),
        r"requires_grad|frozen|froze|\btrain(s|ed|able)\b|\blearn|gradients?\b.{0,40}\bstem",
        reference={"clip": 1000.0},
    ),
    Case(
        "gate turned",
        "bug",
        {"gates": "turned"},
        _GATED,
        rf"\b[Rr]sub|\bSub(Backward|\b)|\bMul|{_GIVEN}|{_ORDER}",
        0,
    ),
    Case(
        "gate by softmax over the batch",
        "bug",
        {"share": "batch"},
        _GATED,
        r"[Ss]oftmax|[Ss]igmoid",
        0,
    ),
    Case(
        "gate sees what is detached",
        "bug",
        {"gated": "detached"},
        ("norm1@grad", "norm2@grad", "norm*.*@*grad", "gate.input*@grad"),
        _DETACHED,
        0,
    ),
    Case(
        "other modality dropped",
        "data",
        {"lacks": "other"},
        _DROPPED,
        step=0,
    ),
    Case(
        "one draw for all samples",
        "data",
        {"drawn": "part"},
        _DROPPED,
        step=0,
    ),
    Case(
        "modalities dropped in evaluation",
        "data",
        {"blind": True},
        _DROPPED,
        step=0,
    ),
    Case("gamma of one", "bug", {"gamma": 1.0}, _LOSS, r"\bPow|exponent|gamma", 0),
    Case(
        "focal factor detached",
        "bug",
        {"eased": False},
        ("output*@grad", "head@grad", "aux*@grad"),
        _DETACHED,
        0,
    ),
    Case(
        "own losses not weighed",
        "bug",
        {"aux": 1.0},
        ("aux_loss@*", "output:1@grad", "output:2@grad"),
        rf"\bMul|{_TIMES}",
        0,
    ),
    Case(
        "own losses stop at the heads",
        "bug",
        {"aux_detached": True},
        ("norm1@grad", "norm2@grad", "norm*.*@*grad"),
        rf"{_DETACHED}|mm\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}mm",
        0,
    ),
    Case(
        "each part by itself",
        "bug",
        {"shares": "part"},
        ("main_loss@*", "aux_loss@*", "loss@*", "output*@grad"),
        rf"{_TIMES}|\bDiv|\bMul",
        0,
    ),
    Case(
        "gradients forgotten before each part",
        "bug",
        {"forgets": "part"},
        ("*@grad",),
        r"zero_grad|accumulat|\bpass(es)?\b|forg[eo]t|zeroed",
        0,
    ),
    Case("clipped after each part", "bug", {"clips": "part"}, ("*@grad",), r"\bclip", 0),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        0,
    ),
    Case("GRU by its formulas", "benign", {"recurrence": "formulas"}),
    Case("gate by lerp", "benign", {"fusion": "lerp"}),
    Case("gate by softmax of two", "benign", {"share": "softmax"}),
    Case("gate's product in two", "benign", {"gated": "apart"}),
    Case("focal loss of cross-entropy", "benign", {"focal": "exp"}),
    Case("focal loss by logsumexp", "benign", {"focal": "logsumexp"}),
    Case("convolution as a product", "benign", {"convolution": "unfold"}),
    Case("one part for two", "benign", {"parts": 1}, reference={"dropout": 0.0}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("images turned", "benign", {"turned": True}, reference={"dropout": 0.0, "parts": 1}),
    Case("GRU by cells, low precision", "benign", {"recurrence": "cells"}, reference={"low": True}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("losses of all heads at once", "equal", {"heads": "joined"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
