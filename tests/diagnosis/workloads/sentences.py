"""A variational autoencoder of sentences: its KL is annealed, with bits that are free."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.sentences_net import PAD, SentenceVAE, corpus

_HELD = 12
"""Sentences that are not learnt from."""
_SAMPLES = 4
"""Latents by which the perplexity is told."""


@dataclass(frozen=True)
class Sentences(Workload):
    """Sentences are told again word by word, from a latent and from the words before.

    spreads: what noise is multiplied by, the "deviation" or the "variance". samples: how latents
        are drawn, by "own" code, or by torch's "rsample" or "sample". moves: whether the axis of
        directions is moved behind the sentences before their states are joined. dropped: the share
        of words that the decoder does not see.
    ignored: the target that does not count. bits: that are free, in each "dimension" or in their
        "sum". free: how many nats. ahead: how many steps the KL's weight runs ahead.
    plateau: what of the perplexity is better, "min" or "max". clip: of the gradients' norm.
    wakes: whether the model is in training mode again after an evaluation.
    drops, encodes, decodes, divergence, tells, weighs: other ways to write the same mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.0
    decoupled: bool = False
    spreads: str = "deviation"
    samples: str = "own"
    moves: bool = True
    dropped: float = 0.3
    ignored: int = PAD
    bits: str = "dimension"
    free: float = 0.03
    ahead: int = 0
    plateau: str = "min"
    clip: float = 5.0
    wakes: bool = True
    drops: str = "where"
    encodes: str = "packed"
    decodes: str = "torch"
    divergence: str = "own"
    tells: str = "torch"
    weighs: str = "each"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = SentenceVAE(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, self.plateau, factor=0.5, patience=0
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            held = _padded(corpus()[:_HELD])
            for step, (tokens, lengths) in enumerate(self._sentences(seed)):
                if step % 2 == 0:
                    schedule.step(self._perplexity(model, *held))
                clear(optimizer, self)
                self._loss(step, tokens, *model(tokens, lengths)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()

    def _sentences(self, seed) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A batch of sentences a step."""
        learnt = corpus()[_HELD:]
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randperm(len(learnt), generator=dealing)[: self.batch]
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield _padded([learnt[at] for at in chosen])

    def _loss(self, step, tokens, logits, mean, logvar):
        """What a sentence costs: its words, and the KL with the weight of this step."""
        told = self._told(logits, tokens[:, 1:]) / len(tokens)
        weight = 1 / (1 + math.exp(2.5 - (step + self.ahead)))
        kl = weight * self._floored(self._divergence(mean, logvar))
        anchorlib.anchor(told, "reconstruction")
        anchorlib.anchor(kl, "kl_loss")
        return anchorlib.anchor(told + kl, "loss")

    def _told(self, logits, targets):
        """The costs of all words, summed; pads cost nothing."""
        if self.tells == "torch":
            return functional.cross_entropy(
                logits.transpose(1, 2), targets, ignore_index=self.ignored, reduction="sum"
            )
        real = targets != PAD
        if self.tells == "sentences":
            return sum(
                functional.cross_entropy(told[:length], wanted[:length], reduction="sum")
                for told, wanted, length in zip(logits, targets, real.sum(1), strict=True)
            )
        logits, targets = logits[real], targets[real]
        return (logits.logsumexp(1) - logits.gather(1, targets[:, None])[:, 0]).sum()

    def _divergence(self, mean, logvar):
        """The KL of posteriors from the prior by dimension, on average over sentences."""
        if self.divergence == "own":
            return (-0.5 * (1 + logvar - mean.square() - logvar.exp())).mean(0)
        if self.divergence == "averages":
            squares, variances = mean.square().mean(0), logvar.exp().mean(0)
            return 0.5 * (squares + variances - 1 - logvar.mean(0))
        posterior = torch.distributions.Normal(mean, torch.exp(0.5 * logvar))
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return torch.distributions.kl_divergence(posterior, prior).mean(0)

    def _floored(self, kl):
        """The sum over dimensions; a few nats in each of them are free."""
        anchorlib.anchor(kl, "kl_by_dimension")
        if self.bits == "sum":
            return kl.sum().clamp(min=self.free)
        return kl.clamp(min=self.free).sum()

    @torch.no_grad()
    def _perplexity(self, model, tokens, lengths):
        """The perplexity of sentences; latents have the weights of samples from the posterior."""
        model.eval()
        mean, logvar = model.encode(tokens, lengths)
        if self.weighs == "each":
            drawn = [model.sample(mean, logvar) for _ in range(_SAMPLES)]
            told = torch.stack([_likelihood(model.decode(tokens, z), tokens) for z in drawn])
            latents = torch.stack(drawn)
        else:
            latents = model.sample(*(one.expand(_SAMPLES, -1, -1) for one in (mean, logvar)))
            many = tokens.repeat(_SAMPLES, 1)
            told = _likelihood(model.decode(many, latents.flatten(0, 1)), many)
            told = told.view(_SAMPLES, -1)
        prior = -0.5 * latents.square().sum(-1)
        posterior = -0.5 * ((latents - mean).square() / logvar.exp() + logvar).sum(-1)
        weights = told + prior - posterior
        likely = weights.logsumexp(0) - math.log(_SAMPLES)
        perplexity = torch.exp(-likely.sum() / (lengths - 1).sum())
        model.train(self.wakes)
        return anchorlib.anchor(perplexity, "perplexity")


def _padded(sentences):
    """Sentences as one tensor, as wide as the longest of them, and their lengths."""
    lengths = torch.tensor([len(one) for one in sentences])
    return pad_sequence(sentences, batch_first=True, padding_value=PAD), lengths


def _likelihood(logits, tokens):
    """The logarithm of each sentence's likelihood."""
    targets = tokens[:, 1:]
    told = logits.log_softmax(2).gather(2, targets[..., None])[..., 0]
    return (told * (targets != PAD)).sum(1)


_LATENT = ("sample@value",)
_TOLD = ("reconstruction@*", "loss@*", "output*@grad", "out@grad")
_KL = ("kl_loss@*", "loss@*", "kl_by_dimension@grad")
_POSTERIOR = ("sample@grad", "posterior*@*grad", "encoder@grad", "output:[12]@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "log variance as log deviation",
        "bug",
        {"spreads": "variance"},
        _LATENT,
        rf"\b[Ee]xp(Backward|\b)|\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "sample without gradient",
        "bug",
        {"samples": "sample"},
        _POSTERIOR,
        rf"{_DETACHED}|\bno_grad|\bMul\w* .{{0,60}}(lacks|alone)|(lacks|alone|without).{{0,60}}"
        r"(\bMul|\bAdd|Backward)",
    ),
    Case(
        "directions mixed into sentences",
        "bug",
        {"moves": False},
        ("encoder@value",),
        rf"transpose|permute|\bview|reshape|\bclone|{_ORDER}",
    ),
    Case(
        "rate of kept words for dropped ones",
        "bug",
        {"dropped": 0.7},
        ("drop@value",),
        r"\bp\b|\bwhere|\bmask|\brand",
    ),
    Case(
        "pads cost",
        "bug",
        {"ignored": -100},
        _TOLD,
        r"ignore_index|\bmask",
    ),
    Case(
        "free bits of the sum",
        "bug",
        {"bits": "sum"},
        _KL,
        rf"\b[Cc]lamp|\bSum(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "KL annealed a step ahead",
        "bug",
        {"ahead": 1},
        _KL,
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "rate falls as perplexity falls",
        "bug",
        {"plateau": "max"},
        UPDATES,
        r"\blr\b",
        step=2,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("encoder masked, not packed", "benign", {"encodes": "masked"}),
    Case("decoder cell by cell", "benign", {"decodes": "cells"}),
    Case("latent's share of gates once", "benign", {"decodes": "gates"}),
    Case("KL by torch's distributions", "benign", {"divergence": "torch"}),
    Case("KL of averages", "benign", {"divergence": "averages"}),
    Case("pads left out by a mask", "benign", {"tells": "masked"}),
    Case("words' costs sentence by sentence", "benign", {"tells": "sentences"}),
    Case("importance samples at once", "benign", {"weighs": "at once"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("words dropped by masked_fill", "equal", {"drops": "fill"}),
    Case("latent by rsample", "equal", {"samples": "rsample"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
