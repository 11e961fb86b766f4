"""An embedded topic model: what share of each topic a bag of words has, and each topic's words."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import distributions
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
)
from tests.diagnosis.workloads.topics_net import TOPICS, WORDS, Adam, Model

_DOCUMENTS, _LONGEST, _SHOWN = 96, 60, 16


@dataclass(frozen=True)
class Topics(Workload):
    """Documents are drawn from hidden topics; each is padded with 0, and words count from 1.

    counts: whether column 0, of the padding, is dropped, or the last one ("last").
    norms, dropout: whether the posterior's parameters are batch-normed, and the encoder's share.
    spread: what noise is multiplied by, the "deviation" or the "variance".
    over: what the decoder's softmax is over, "words" or "topics". learns: whether embeddings of
        words receive gradients.
    centred: whether the prior's mean, a Laplace approximation, is less its own mean.
    entropy: the sign of the logarithms in the divergence. wanted: the reconstruction's targets,
        "counts" or "shares". minimizes: the "likelihood" of words or their "perplexity".
    anneal: the weight of the divergence rises in "fractions" or in "whole" numbers. warmup: steps.
    groups: whose parameters are optimized, "all" or the "encoder". wakes: whether the model is in
        training mode again after an evaluation. every: steps from one evaluation to the next.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    bag, norming, heads, mixture, divergence, likelihood, prior, keeps: other ways to write the
        same mathematics.
    """

    betas: tuple[float, float] = (0.99, 0.999)
    counts: str = "words"
    norms: bool = True
    dropout: float = 0.2
    spread: str = "deviation"
    over: str = "words"
    learns: bool = True
    centred: bool = True
    entropy: float = 1.0
    wanted: str = "counts"
    minimizes: str = "likelihood"
    anneal: str = "fractions"
    warmup: int = 4
    groups: str = "all"
    wakes: bool = True
    every: int = 2
    parts: int = 1
    low: bool = False
    bag: str = "dense"
    norming: str = "torch"
    heads: str = "apart"
    mixture: str = "product"
    divergence: str = "own"
    likelihood: str = "counts"
    prior: str = "constants"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model, prior = Model(self), self._prior()
            if self.prior == "buffers":
                model.register_buffer("prior_mean", prior[0])
                model.register_buffer("prior_variance", prior[1])
            optimizer = self._optimizer(model)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            corpus = _corpus(seed)
            for step, tokens in enumerate(self._batches(corpus, seed)):
                if self.prior == "buffers":
                    prior = model.prior_mean, model.prior_variance
                clear(optimizer, self)
                for (part,) in cut(self.parts, tokens):
                    self._learn(model, part, prior, step)
                optimizer.step()
                if (step + 1) % self.every == 0:
                    self._evaluate(model, corpus[-_SHOWN:])

    def _optimizer(self, model):
        """Adam; embeddings do not decay."""
        groups = [
            {"params": [one for name, one in model.named_parameters() if "decoder" not in name]}
        ]
        if self.groups == "all":
            groups.append({"params": list(model.decoder.parameters()), "weight_decay": 0.0})
        if self.implementation == "own":
            return Adam(groups, self)
        return self.adam(groups)

    def _prior(self):
        """Mean and variance of the normal distribution whose softmax is nearly Dirichlet's."""
        alpha = 1 / (torch.arange(TOPICS) + math.sqrt(TOPICS))
        mean = alpha.log()
        mean = mean - mean.mean() if self.centred else mean
        return mean, (1 - 2 / TOPICS) / alpha + (1 / alpha).sum() / TOPICS**2

    def _batches(self, corpus, seed):
        """Documents, step by step."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(corpus) - _SHOWN, (self.batch,), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield corpus[chosen.flip(0) if self.turned else chosen]

    def _counted(self, tokens):
        """How often each word is in each document."""
        counts = torch.zeros(len(tokens), WORDS + 1)
        counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=counts.dtype))
        return counts[:, 1:] if self.counts == "words" else counts[:, :-1]

    def _learn(self, model, tokens, prior, step):
        """The gradients of one micro-batch."""
        counts = self._counted(tokens)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(counts)
        told, mean, logvar = (one.to(counts.dtype) for one in told)
        missed = self._missed(told, counts, tokens)
        apart = self._apart(mean, logvar, *prior).sum() / self.batch
        if self.anneal == "fractions":
            weight = min(1.0, (step + 1) / self.warmup)
        else:
            weight = min(1.0, (step + 1) // self.warmup)
        anchorlib.anchor(missed, "reconstruction")
        anchorlib.anchor(apart, "kl")
        loss = anchorlib.anchor(missed + weight * apart, "loss")
        loss.backward()

    def _missed(self, told, counts, tokens):
        """Minus the logarithm of the documents' probability."""
        if self.minimizes == "perplexity":
            return (-(counts * told).sum() / counts.sum()).exp()
        if self.likelihood == "tokens":
            each = told[:, :, None].expand(-1, -1, _LONGEST)
            missed = functional.nll_loss(each, tokens - 1, ignore_index=-1, reduction="sum")
            return missed / self.batch
        if self.wanted == "shares":
            counts = counts / counts.sum(1, keepdim=True)
        return -(counts * told).sum(1).sum() / self.batch

    def _apart(self, mean, logvar, at, variance):
        """The divergence of each document's posterior from the prior."""
        if self.divergence == "torch":
            return distributions.kl_divergence(
                distributions.Independent(distributions.Normal(mean, (logvar / 2).exp()), 1),
                distributions.Independent(distributions.Normal(at, variance.sqrt()), 1),
            )
        logs = self.entropy * (variance.log() - logvar)
        return 0.5 * (logvar.exp() / variance + (mean - at).square() / variance + logs - 1).sum(1)

    @torch.no_grad()
    def _evaluate(self, model, tokens):
        """The perplexity of documents that are not learnt from."""
        model.eval()
        counts = self._counted(tokens)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told, *_ = model(counts)
        anchorlib.anchor((-(counts * told).sum() / counts.sum()).exp(), "perplexity")
        model.train(self.wakes)


def _corpus(seed):
    """Padded documents of drawn lengths, each of a few drawn topics."""
    source = torch.Generator().manual_seed(29 + 1000 * seed)
    topics = (2.5 * torch.randn(TOPICS, WORDS, generator=source)).softmax(1)
    shares = (2.0 * torch.randn(_DOCUMENTS, TOPICS, generator=source)).softmax(1)
    tokens = 1 + torch.multinomial(shares @ topics, _LONGEST, True, generator=source)
    lengths = torch.randint(20, _LONGEST + 1, (_DOCUMENTS, 1), generator=source)
    return tokens.where(torch.arange(_LONGEST) < lengths, 0)


_KL = ("kl@*",)
_MISSED = ("reconstruction@*", "loss@*", "output*@grad", "decoder@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_LACKS = r"(lacks|alone|without|missing|only in)"
CASES: tuple[Case, ...] = (
    Case(
        "softmax over topics",
        "bug",
        {"over": "topics"},
        ("beta@value", "decoder@value"),
        r"\bdim\b|\baxis\b",
    ),
    Case(
        "variance for deviation",
        "bug",
        {"spread": "variance"},
        ("posterior@value",),
        rf"\bMul|\bExp(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "embeddings of words detached",
        "bug",
        {"learns": False},
        ("decoder.words@*", "decoder.topics@grad"),
        rf"detach|gradients? come|requires_grad|no gradient|{_LACKS}",
    ),
    Case(
        "prior's mean not centred",
        "bug",
        {"centred": False},
        (*_KL, "output:1@grad", "mean_norm@grad"),
        rf"\bSub(Backward|\b)|{_GIVEN}|constant|shift|plus",
    ),
    Case(
        "sign of the entropy",
        "bug",
        {"entropy": -1.0},
        (*_KL, "output:2@grad", "logvar_norm@grad"),
        rf"\bMul|\bNeg|other sign|opposite|\bSub(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "shares for counts as targets",
        "bug",
        {"wanted": "shares"},
        _MISSED,
        rf"\bMul|\bDiv|targets?|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "perplexity minimized",
        "bug",
        {"minimizes": "perplexity"},
        _MISSED,
        rf"\bExp(Backward|\b)|\bDiv|{_TIMES}",
    ),
    Case(
        "annealing in whole numbers",
        "bug",
        {"anneal": "whole"},
        ("loss@*", "kl@grad", "output:[12]@grad", "*_norm@grad"),
        rf"\bMul|{_TIMES}|{_GIVEN}|zeros?\b",
    ),
    Case(
        "embeddings not optimized",
        "bug",
        {"groups": "encoder"},
        ("decoder.words@*", "decoder.topics.weight@*"),
        rf"optimi[sz]e|param_?groups?|updated?|unchanged|frozen|{_LACKS}",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("encoder.drop@value", "*_norm@value", "posterior@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("words mixed as logarithms", "benign", {"mixture": "log"}),
    Case("divergence by torch", "benign", {"divergence": "torch"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("bag of embeddings", "benign", {"bag": "sparse"}),
    Case("likelihood of each token", "benign", {"likelihood": "tokens"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"norms": False, "dropout": 0.0}),
    Case("own Adam", "benign", {"implementation": "own"}),
    Case("heads as one, low precision", "benign", {"heads": "joined"}, reference={"low": True}),
    Case("words off by one", "data", {"counts": "last"}, ("input*@value",)),
    Case(
        "other init", "data", {"init": 1}, ("*weight@value", "*bias@value", "decoder.words@value")
    ),
    Case("prior in buffers", "equal", {"prior": "buffers"}),
    Case("decoder computed twice", "equal", {"keeps": "edges"}),
    Case("evaluated after each step", "equal", {"every": 1}),
    Case("died", "incomplete", {"ends_at": 3}),
)
