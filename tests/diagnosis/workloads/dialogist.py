"""A dialogue of tokens: an encoder and a decoder with Luong attention learn to answer sequences."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    cut,
    digits,
    renamed,
)
from tests.diagnosis.workloads.dialogue import END, PAD, SOURCES, Dialogue

_LONGEST = 9
"""Tokens of the longest target."""
_SHOWN = 12
"""Sequences that the evaluation sees."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dialogist(Workload):
    """The source says how bright an image's rows are, the target where they are brightest.

    packs: whether padding is kept from the encoder. moves: whether both directions' last states
        are moved behind the samples before they are joined. masks: whether attention leaves padding
        out. query: the state that attends, the "new" one or the one "before". shifts: whether the
        decoder is given the token before. detaches: whether the decoder's state is, at each token.
        tied: whether the output has the weights of the embeddings. dropout: of embeddings.
    forcing: how often the decoder is given the right token instead of its own.
    smoothing: of labels. over: what losses are divided by, all "tokens" or also the "padding".
    warmup: steps of rising rate. first: how steps are counted. clip: of gradients' norm.
    clears: whether gradients are forgotten. wakes: whether training mode is set again after an
        evaluation. parts: micro-batches a step.
    low: whether the model runs under autocast to bfloat16.
    calls: names of modules. logs: whether losses are told.
    cells, attention, passes, loss: other ways to write the same mathematics.
    """

    lr: float = 3e-2
    betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-9
    weight_decay: float = 0.0
    decoupled: bool = False
    packs: bool = True
    moves: bool = True
    masks: bool = True
    query: str = "new"
    shifts: bool = True
    detaches: bool = False
    tied: bool = True
    dropout: float = 0.0
    forcing: float = 0.7
    smoothing: float = 0.1
    over: str = "tokens"
    warmup: int = 4
    first: int = 1
    clip: float = 0.5
    clears: bool = True
    wakes: bool = True
    parts: int = 1
    low: bool = False
    calls: tuple[tuple[str, str], ...] = ()
    logs: bool = False
    cells: str = "torch"
    attention: str = "bmm"
    passes: str = "each"
    loss: str = "own"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Dialogue(self)
            renamed(model, dict(self.calls))
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            forcing = torch.Generator().manual_seed(seed)
            shown = _sequences(*(one[:_SHOWN] for one in digits()))
            for step, batch in enumerate(self.images(seed)):
                forced = (torch.rand(_LONGEST, generator=forcing) < self.forcing).tolist()
                source, lengths, target = _sequences(*batch)
                if self.clears:
                    clear(optimizer, self)
                told = 0.0
                for part in cut(self.parts, source, lengths, target):
                    loss = self._loss(self._told(model, part, forced), part[2], target)
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                    told += loss.item()
                if self.logs:
                    _LOG.debug("step %d: %.4f a token", step, told)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()
                if self.evaluates and step % 3 == 2:
                    self._evaluate(model, shown)

    def _rate(self, step):
        """The factor of the learning rate: it rises, then falls as an inverse square root."""
        step += self.first
        return min(max(step, 1) ** -0.5, step * self.warmup**-1.5)

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of sequences that are not learnt from, by the model's own tokens."""
        model.eval()
        told = self._told(model, shown, [False] * _LONGEST)
        anchorlib.anchor(self._loss(told, shown[2], shown[2]), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, batch, forced):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(*batch, forced)
        return logits.to(torch.get_default_dtype())

    def _loss(self, logits, target, whole):
        """A part's share of the loss a token, with smooth labels, without padding."""
        count = (whole != PAD).sum() if self.over == "tokens" else whole.numel()
        if self.loss == "torch":
            return (
                functional.cross_entropy(
                    logits.flatten(0, 1),
                    target.flatten(),
                    ignore_index=PAD,
                    label_smoothing=self.smoothing,
                    reduction="sum",
                )
                / count
            )
        chances = logits.log_softmax(-1)
        missed = -chances.gather(-1, target[..., None]).squeeze(-1)
        costs = (1 - self.smoothing) * missed - self.smoothing * chances.mean(-1)
        return (costs * (target != PAD)).sum() / count


def _sequences(images, labels):
    """Padded sources, their lengths, and padded targets that end; a digit tells how many rows."""
    counts = 4 + labels % 5
    levels = ((images.mean(2) + 1) * 0.8 * (SOURCES - 4)).long().clamp(max=SOURCES - 4) + END + 1
    columns = images.argmax(2) + END + 1
    end = torch.tensor([END])
    sources = [one[:count] for one, count in zip(levels, counts, strict=True)]
    targets = [
        torch.cat((one[:count].unique_consecutive(), end))
        for one, count in zip(columns, counts, strict=True)
    ]
    return (
        pad_sequence(sources, batch_first=True, padding_value=PAD),
        counts,
        pad_sequence(targets, batch_first=True, padding_value=PAD),
    )


_LOSS = ("loss@*", "output@grad")
_GRADS = ("*weight*@grad", "*bias*@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|indices|index) "
"""Words that name other numbers which an operation was given."""
CASES = [
    Case(
        "padding read by the encoder",
        "bug",
        {"packs": False},
        ("encoder.gru@value", "encoder.gru:*@value", "encoder@value", "encoder:1@value"),
        r"pack|\bpad|lengths|batch_sizes",
    ),
    Case(
        "both directions joined across samples",
        "bug",
        {"moves": False},
        ("encoder.bridge@value", "encoder:1@value"),
        r"transpose|permute|another order|arranged otherwise|reshape|\bView",
    ),
    Case(
        "attention to padding",
        "bug",
        {"masks": False},
        ("decoder.attention@value",),
        r"\bmask|masked_fill|MaskedFill",
    ),
    Case(
        "attention by the state before",
        "bug",
        {"query": "before"},
        ("decoder.attention@value",),
        rf"\bquery|\bstate|decoder\.gru|\bBmm|{_GIVEN}",
    ),
    Case(
        "targets given unshifted",
        "bug",
        {"shifts": False},
        ("decoder.embed.words@value", "decoder.embed.drop@value", "decoder.embed@value"),
        rf"\bEmbedding|indices|\bCat\b|CatBackward|another order|{_GIVEN}",
    ),
    Case(
        "decoder's state detached",
        "bug",
        {"detaches": True},
        ("decoder.gru*@grad", "decoder.gru*@pass_grad", "decoder:*@grad", "decoder.mix@grad"),
        r"detach|gradients come back|\b(lacks|alone)\b",
    ),
    Case(
        "loss over padding too",
        "bug",
        {"over": "padding"},
        _LOSS,
        rf"\bDiv|divid|{_TIMES}",
    ),
    Case(
        "gradients never forgotten",
        "bug",
        {"clears": False},
        (*_GRADS, "*@pass_grad"),
        r"zero_grad|accumulat|not cleared|forgot|gradients? (of|from) (the )?(step|pass)",
        1,
    ),
    Case(
        "gradients clipped at 50",
        "bug",
        {"clip": 50.0},
        (*_GRADS, *UPDATES),
        rf"\bclip|max_norm|{_TIMES}",
    ),
    Case(
        "warm-up counted from nought",
        "bug",
        {"first": 0},
        UPDATES,
        r"\blr\b|learning rate",
        0,
    ),
    Case("second beta as by default", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\b|beta2"),
    Case(
        "evaluation mode kept",
        "bug",
        {"wakes": False},
        ("encoder.embed.drop@value", "encoder.embed@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        3,
        reference={"dropout": 0.2, "evaluates": True},
    ),
    Case("torch's cross entropy", "benign", {"loss": "torch"}),
    Case(
        "queries projected for keys", "benign", {"attention": "folded"}, reference={"tied": False}
    ),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("all tokens in one pass", "benign", {"passes": "one"}, reference={"forcing": 1.0}),
    Case("two micro-batches", "benign", {"parts": 2}),
    Case("batch turned", "benign", {"turned": True}),
    Case("own cells", "benign", {"cells": "own"}),
    Case(
        "attention by sums, low precision",
        "benign",
        {"attention": "sum"},
        reference={"low": True, "forcing": 1.0},
    ),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case(
        "embeddings called otherwise", "equal", {"calls": (("words", "tokens"), ("drop", "noise"))}
    ),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("losses told", "equal", {"logs": True}),
    Case("died", "incomplete", {"ends_at": 4}),
]
