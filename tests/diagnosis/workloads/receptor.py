"""A language model of drawn digits that reads by a recurrence: its decays, gates and batches."""

from __future__ import annotations

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
    cut,
    digits,
    warmed,
)
from tests.diagnosis.workloads.receptor_net import RWKV, L2Wrap

_PAD, _END, _FIRST = 0, 1, 2
_LEVELS = 8
_IGNORED = -100
_PULL = 1e-4
"""The weight of the squares of the largest logits."""
_SHOWN = 6
"""Documents that the evaluation sees."""


@dataclass(frozen=True)
class Receptor(Workload):
    """Documents are digits, column by column, without the columns that have no ink.

    decay: decays are minus the "exp" of their parameters, or the parameters "raw".
    ages: whether what was read decays "after" the next token or already "before" it.
    keeps: whether tokens enter the state with their "key" or also with their "bonus".
    gate: of the time mixing, "sigmoid" or "none". shift: to the next place, by "pad" or "cat", or
        to the next of the "documents". squares: whether the channel mixing squares its ReLU.
    ignores: whether padding has no loss. context: places of a document.
    parts: micro-batches a step. shares: what their losses are divided by, the tokens of the whole
        "batch", or of each "part". schedules: the rate changes each "step" or "part".
    divides: whether the pull of large logits is divided by the count of tokens, as the loss is.
    warmup: steps of rising rate. clip: of gradients.
    low: whether the net runs under autocast to bfloat16.
    wkv, mixing, projections, costs, again: other ways to write the same mathematics.
    """

    steps: int = 5
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    decay: str = "exp"
    ages: str = "after"
    keeps: str = "key"
    gate: str = "sigmoid"
    shift: str = "pad"
    squares: bool = True
    ignores: bool = True
    context: int = 33
    parts: int = 2
    shares: str = "batch"
    schedules: str = "step"
    divides: bool = True
    warmup: int = 2
    clip: float = 1.0
    low: bool = False
    wkv: str = "recurrence"
    mixing: str = "plain"
    projections: str = "linear"
    costs: str = "torch"
    again: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = RWKV(self, _FIRST + _LEVELS)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (images, _) in enumerate(self.images(seed)):
                if self.evaluates and step % 2 == 0:
                    self._evaluate(model)
                batch = self._documents(images)
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, part, batch)
                    if self.schedules == "part":
                        schedule.step()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()

    def _groups(self, model):
        """Matrices, which decay; decays and bonuses, which learn faster; and all else."""
        rates = {"time_decay": 2.0, "time_first": 3.0}
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, one in model.named_parameters():
            rate = rates.get(name.rpartition(".")[2], 1.0)
            groups.setdefault((rate, one.ndim > 1), []).append(one)
        return [
            {
                "params": params,
                "lr": self.lr * rate,
                "weight_decay": self.weight_decay if deep else 0.0,
            }
            for (rate, deep), params in groups.items()
        ]

    def _documents(self, images):
        """Tokens, and the token after each (document, place)."""
        ink = images.unflatten(1, (4, 2)).mean(2) + 1
        levels = _FIRST + (ink * _LEVELS / 2).long().clamp(max=_LEVELS - 1)
        rows = torch.full((len(images), self.context + 1), _PAD)
        rows[:, 0] = _END
        for row, image, columns in zip(rows, levels, ink.amax(1) > 0.25, strict=True):
            inked = columns.nonzero()[:, 0]
            written = image[:, inked[0] : inked[-1] + 1].t().flatten()
            row[1 : len(written) + 1] = written
            if len(written) < self.context:
                row[len(written) + 1] = _END
        targets = rows[:, 1:]
        if self.ignores:
            targets = targets.masked_fill(targets == _PAD, _IGNORED)
        return rows[:, :-1], targets

    @torch.no_grad()
    def _evaluate(self, model):
        """The loss of documents that are not learnt from."""
        model.eval()
        tokens, targets = self._documents(digits()[0][:_SHOWN])
        loss = self._costs(self._told(model, tokens), targets) / (targets != _IGNORED).sum()
        model.train()
        return loss

    def _told(self, model, tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(tokens)
        return logits.to(model.emb.weight.dtype)

    def _learn(self, model, part, batch):
        """The gradients of one micro-batch."""
        tokens, targets = part
        anchorlib.anchor(targets, "targets")
        counts = targets != _IGNORED
        if self.shares == "batch":
            count = (batch[1] != _IGNORED).sum()
        else:
            count = counts.sum() * self.parts
        logits = self._told(model, tokens)
        loss = anchorlib.anchor(self._costs(logits, targets) / count, "loss")
        weights = _PULL * counts.to(loss.dtype)
        weights = weights / count if self.divides else weights
        L2Wrap.apply(loss, logits, weights).backward()

    def _costs(self, logits, targets):
        """The cross entropies of all tokens, added up."""
        if self.costs == "torch":
            logits, targets = logits.flatten(0, 1), targets.flatten()
            return functional.cross_entropy(logits, targets, ignore_index=_IGNORED, reduction="sum")
        chosen = logits.gather(2, targets.clamp(min=0)[..., None])[..., 0]
        return ((logits.logsumexp(2) - chosen) * (targets != _IGNORED)).sum()


_MEANS = ("blocks.0.att.output@value", "blocks.0.att@value")
_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "decay without exp",
        "bug",
        {"decay": "raw"},
        _MEANS,
        r"\b[Ee]xp(Backward|\b)|\b[Nn]eg(Backward|\b)",
    ),
    Case(
        "decay before the next token",
        "bug",
        {"ages": "before"},
        _MEANS,
        rf"\bAdd(Backward|\b)|\bMaximum|{_GIVEN}",
    ),
    Case(
        "bonus kept in the state",
        "bug",
        {"keeps": "bonus"},
        _MEANS,
        rf"\bAdd(Backward|\b)|\bMaximum|{_GIVEN}",
    ),
    Case("gate without sigmoid", "bug", {"gate": "none"}, _MEANS, r"sigmoid"),
    Case(
        "shift along documents",
        "bug",
        {"shift": "documents"},
        (
            "blocks.0.att.key@value",
            "blocks.0.att.value@value",
            "blocks.0.att.receptance@value",
        ),
        rf"\bpad|constant_?pad|\bdim\b|\bshift|{_ORDER}",
    ),
    Case(
        "ReLU not squared",
        "bug",
        {"squares": False},
        ("blocks.0.ffn.value@value",),
        r"\bPow|\b[Ss]quare",
    ),
    Case(
        "padding has a loss",
        "bug",
        {"ignores": False},
        ("targets@value", *_LOSS),
        r"targets? differ|\btargets?\b|ignore_index|-100",
    ),
    Case(
        "each part by its own tokens",
        "bug",
        {"shares": "part"},
        _LOSS,
        rf"{_TIMES}|\bDiv|\bMul",
    ),
    Case(
        "pull not divided by tokens",
        "bug",
        {"divides": False},
        ("output@grad", "head@grad"),
        rf"L2Wrap|\bDiv|{_TIMES}",
    ),
    Case("rate changes at each part", "bug", {"schedules": "part"}, UPDATES, r"\blr\b"),
    Case("recurrence as attention", "benign", {"wkv": "attention"}),
    Case("own backward of the recurrence", "benign", {"wkv": "function"}),
    Case(
        "recurrence without maximum, low precision",
        "benign",
        {"wkv": "plain"},
        reference={"low": True},
    ),
    Case("tokens mixed by lerp", "benign", {"mixing": "lerp"}),
    Case("projections as a convolution", "benign", {"projections": "convolution"}),
    Case("one part for two", "benign", {"parts": 1}),
    Case("losses by logsumexp", "benign", {"costs": "logsumexp"}),
    Case("padded further", "benign", {"context": 40}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("shift by cat", "equal", {"shift": "cat"}),
    Case("blocks computed again", "equal", {"again": True}),
    Case("evaluated between steps", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
