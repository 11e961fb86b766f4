"""A language model of characters by long convolutions, whose filters a small net makes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache

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
    warmed,
)
from tests.diagnosis.workloads.convolver_net import LONGEST, Net

_CHARACTERS = "\0 .abcdefghijklmnopqrstuvwxyz"
_WORDS = (
    "the a of one old new red sea sun man dog boat road hill wind rain light stone river winter "
    "house runs sees falls sings turns finds over under near far and but then"
)
_SENTENCES = 400
_SHOWN = 12
"""Sentences that the evaluation reads, which are not learnt from."""


@dataclass(frozen=True)
class Convolver(Workload):
    """Sentences of drawn words, padded to one length.

    padded: what the transforms' size is: "twice" the text, a "power" of two, or the text "once".
    scaling: where the inverse transform's factor stands: in the "inverse", in the "filter", or
        "ortho", in each transform alike. convolution: by "fft" or by a "matrix". skips: whether the
        long convolution's input is added to it. short: how the short convolution is padded,
        "causal" or "same". taps: that convolution by "torch" or as a sum of "shifted" texts.
    splits: which third of the projection is the value. window: whether filters decay along "time"
        from 0 to 1 or along "positions". floor: of the window. frequency: of the sines.
    dropout: its share. keeps: activations of "all" layers or of blocks' "edges".
    parts: micro-batches a step. shares: what their losses are divided by, the characters of the
        whole "batch" or of each "part". ignores: whether padding is left out of the loss.
    reaches: how far texts are padded, to the most that the model reads or to the "batch"'s longest.
    filters: made for each "part" or "once" a step.
    slow: the filters' learning rate, as a share. warmup: steps of rising rate. clip: of the norm
        of gradients. wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    """

    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    padded: str = "twice"
    scaling: str = "inverse"
    convolution: str = "fft"
    skips: bool = True
    short: str = "causal"
    taps: str = "torch"
    splits: str = "value last"
    window: str = "time"
    floor: float = 0.05
    frequency: float = 3.0
    dropout: float = 0.1
    keeps: str = "all"
    parts: int = 2
    shares: str = "batch"
    ignores: bool = True
    reaches: str = "model"
    filters: str = "part"
    slow: float = 0.3
    warmup: int = 2
    clip: float = 1.0
    wakes: bool = True
    low: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, len(_CHARACTERS))
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._batches(seed)):
                if step and step % 2 == 0:
                    self._evaluate(model)
                clear(optimizer, self)
                self._learn(model, batch)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _batches(self, seed):
        """A batch of sentences a step, none of them shown by the evaluation."""
        dealing = torch.Generator().manual_seed(77 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(_SHOWN, _SENTENCES, (self.batch,), generator=dealing)
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            text = sentences()[chosen]
            if self.reaches == "batch":
                text = text[:, : int((text != 0).sum(1).max())]
            yield text

    def _groups(self, model):
        """The filters' parameters, which are slow and do not decay; what decays; and the rest."""
        named = [
            ("filter" if ".filter." in name else "matrix" if one.ndim == 2 else "flat", one)
            for name, one in model.named_parameters()
        ]
        options = {
            "filter": {"lr": self.lr * self.slow, "weight_decay": 0.0},
            "matrix": {},
            "flat": {"weight_decay": 0.0},
        }
        return [
            {"params": [one for of, one in named if of == kind], **own}
            for kind, own in options.items()
        ]

    @torch.no_grad()
    def _evaluate(self, model):
        """The loss of sentences that are not learnt from."""
        model.eval()
        shown = sentences()[:_SHOWN]
        anchorlib.anchor(self._loss(model, shown, shown), "eval_loss")
        model.train(self.wakes)

    def _learn(self, model, batch):
        """The gradients of all micro-batches."""
        mixers = [block.mixer for block in model.blocks] if self.filters == "once" else []
        for mixer in mixers:
            mixer.prepare()
        for (part,) in cut(self.parts, batch):
            loss = self._loss(model, part, batch if self.shares == "batch" else part)
            anchorlib.anchor(loss, "loss")
            loss.backward()
        for mixer in mixers:
            mixer.finish()

    def _loss(self, model, text, whole):
        """The cross entropy of each next character, as its share of the whole batch's mean."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(text[:, :-1])
        logits = logits.to(model.embed.weight.dtype)
        ignored = 0 if self.ignores else -100
        told = functional.cross_entropy(
            logits.flatten(0, 1), text[:, 1:].flatten(), ignore_index=ignored, reduction="sum"
        )
        return told / (whole[:, 1:] != ignored).sum()


@cache
def sentences() -> torch.Tensor:
    """Sentences of one to six words, as characters' numbers, padded with zeros."""
    drawing = torch.Generator().manual_seed(5)
    found = torch.zeros(_SENTENCES, LONGEST + 1, dtype=torch.long)
    words = _WORDS.split()
    for row in found:
        count = int(torch.randint(1, 7, (), generator=drawing))
        chosen = torch.randint(0, len(words), (count,), generator=drawing).tolist()
        told = (" ".join(words[one] for one in chosen) + ".")[: LONGEST + 1]
        row[: len(told)] = torch.tensor([_CHARACTERS.index(one) for one in told])
    return found


_LOSS = ("loss@*", "output@grad")
_CONVOLVED = ("blocks.0.mixer.long@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "convolution wraps around",
        "bug",
        {"padded": "once"},
        _CONVOLVED,
        r"fft|\bpad|\bshapes?\b|\bn\b|size|\b36\b|\b72\b",
    ),
    Case(
        "orthonormal transforms",
        "bug",
        {"scaling": "ortho"},
        _CONVOLVED,
        rf"fft|normali[sz]ation|\bnorm\b|ortho|{_TIMES}",
    ),
    Case(
        "short convolution sees the next character",
        "bug",
        {"short": "same"},
        ("blocks.0.mixer.short@value",),
        rf"\bpad|{_ORDER}",
    ),
    Case(
        "window along positions",
        "bug",
        {"window": "positions"},
        (
            "blocks.0.mixer.filter.window@value",
            "blocks.0.mixer.filter@value",
            "blocks.0.mixer.long.input*@value",
        ),
        rf"\b[Ee]xp(Backward|\b)|\bMul|\bNeg|linspace|arange|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "value and gate exchanged",
        "bug",
        {"splits": "value first"},
        ("blocks.0.mixer.long.input*@value", *_CONVOLVED),
        rf"{_ORDER}|\bsplit|\bchunk|\bMul|{_GIVEN}",
    ),
    Case(
        "skip of the convolution left out",
        "bug",
        {"skips": False},
        _CONVOLVED,
        r"\bAdd(Backward|\b)|\bMul|\bskip\b",
    ),
    Case("each part by itself", "bug", {"shares": "part"}, _LOSS, rf"{_TIMES}|\bDiv|\bMul"),
    Case(
        "padding counts in the loss",
        "bug",
        {"ignores": False},
        _LOSS,
        rf"ignore_?index|\bDiv|{_GIVEN}",
    ),
    Case("filters as fast as the rest", "bug", {"slow": 1.0}, UPDATES, r"\blr\b"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("blocks.0.drop1@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("transforms of a power of two", "benign", {"padded": "power"}),
    Case("convolution by a Toeplitz matrix", "benign", {"convolution": "matrix"}),
    Case("filter's transform divided by the size", "benign", {"scaling": "filter"}),
    Case("short convolution as shifted sums", "benign", {"taps": "shifted"}),
    Case("filters made once a step", "benign", {"filters": "once"}),
    Case(
        "padded to the batch's longest", "benign", {"reaches": "batch"}, reference={"dropout": 0.0}
    ),
    Case("one part for two", "benign", {"parts": 1}, reference={"dropout": 0.0}),
    Case(
        "sentences turned, low precision",
        "benign",
        {"turned": True},
        reference={"low": True, "dropout": 0.0, "parts": 1},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*skip@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
