"""Word vectors by skip-grams with negative samples, and sentence vectors that know their twins."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.lexicon import WORDS, Lexicon

_SENTENCES, _LONG, _TOPICS = 160, 10, 4
_PAIRS, _OTHERS = 48, 4


@dataclass(frozen=True)
class Embedder(Workload):
    """Frequent words are frequent as Zipf says, and each sentence has a topic that words belong to.

    spread: of the drawn vectors, times their width. bags: what becomes of a word's parts, their
        "mean" or their "sum". shifted: whether bags begin one part too far.
    nearest: how far from the centre the nearest word is that is told. power: of the counts that
        others are drawn by. opposes: whether scores of others should be small. sums: whether the
        losses of others are a "sum" or a "mean". spares: whether others that are the word itself
        are left out. over: the pairs' losses are a "mean" or a "sum".
    means: of a sentence's "words" or of all its "places". flows: whether
        the head's gradient reaches the words. lengths: how sentences get the length of one, or
        not at all ("no"). heat: the temperature. cools: whether similarities are divided by it or
        multiplied ("times"). excludes: whether a sentence is no twin of itself. twin: how many
        places from the twin the target is. head_weight: of the head's loss.
    begun: what the squares of Adagrad begin at. falls: whether the words' rate falls.
    clears: whether gradients of words are forgotten.
    low: whether the net runs under autocast to bfloat16.
    sparse, lookup, scores, linear, logistic, contrast: other ways to write the same mathematics.
    """

    batch: int = 8
    lr: float = 0.1
    spread: float = 3.0
    bags: str = "mean"
    shifted: bool = False
    nearest: int = 1
    power: float = 0.75
    opposes: bool = True
    sums: str = "sum"
    spares: bool = True
    over: str = "mean"
    means: str = "words"
    flows: bool = True
    lengths: str = "torch"
    heat: float = 0.2
    cools: str = "divided"
    excludes: bool = True
    twin: int = 0
    head_weight: float = 0.5
    begun: float = 0.0
    falls: bool = True
    clears: bool = True
    low: bool = False
    sparse: bool = False
    lookup: str = "offsets"
    scores: str = "products"
    linear: str = "torch"
    logistic: str = "logsigmoid"
    contrast: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Lexicon(self)
            words = self._adagrad([*model.inner.parameters(), *model.outer.parameters()])
            head = self.adam(model.head.parameters(), lr=0.02)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                words, lambda step: 1 - step / (2 * self.steps) if self.falls else 1.0
            )
            session.watch(model, tensors="*", optimizer=[words, head])
            torch.manual_seed(seed)
            for pairs, twins in self._samples(seed):
                if self.clears:
                    clear(words, self)
                clear(head, self)
                self._learn(model, pairs, twins)
                words.step()
                head.step()
                schedule.step()

    def _adagrad(self, parameters):
        return torch.optim.Adagrad(
            parameters,
            lr=self.lr,
            initial_accumulator_value=self.begun,
            foreach=self.implementation == "foreach",
            fused=self.implementation == "fused",
        )

    def _samples(self, seed):
        """Words with those around and with others, and sentences twice, step by step."""
        sentences, counts = corpus()
        with torch.no_grad():
            chances = counts.to(torch.get_default_dtype()) ** self.power
            chances = anchorlib.anchor(chances / chances.sum(), "chances")
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            rows = torch.randint(0, _SENTENCES, (_PAIRS,), generator=dealing)
            places = torch.randint(2, _LONG - 2, (_PAIRS,), generator=dealing)
            moves, sides = torch.randint(0, 2, (2, _PAIRS), generator=dealing)
            moves = (moves + self.nearest) * (2 * sides - 1)
            others = torch.multinomial(chances, _PAIRS * _OTHERS, True, generator=dealing)
            pairs = (
                sentences[rows, places],
                sentences[rows, places + moves],
                others.view(_PAIRS, _OTHERS),
            )
            chosen = torch.randperm(_SENTENCES, generator=dealing)[: self.batch]
            seen = torch.rand(2, self.batch, _LONG, generator=dealing) < 0.7
            seen[..., 0] = True
            twins = tuple(sentences[chosen] * seen)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.turned:
                pairs, twins = (tuple(one.flip(0) for one in both) for both in (pairs, twins))
            yield pairs, twins

    def _learn(self, model, pairs, twins):
        """The gradients of a step."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told, others = model(*pairs)
            vectors = model.told(torch.cat(twins))
            alike = vectors @ vectors.t()
        dtype = vectors.dtype
        spared = pairs[2] == pairs[1][:, None]
        worded = self._worded(told.to(dtype), others.to(dtype), spared)
        twinned = self.head_weight * self._twinned(alike.to(dtype))
        loss = worded + twinned
        for one, name in ((worded, "word_loss"), (twinned, "head_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _worded(self, told, others, spared):
        """The loss of words around, and of others that are not."""
        told, others = anchorlib.anchor(told, "near"), anchorlib.anchor(others, "far")
        others = others if self.opposes else -others
        near, far = self._logistic(told, others)
        if self.spares:
            far = far.masked_fill(spared, 0)
        far = far.sum(1) if self.sums == "sum" else far.mean(1)
        return (near + far).mean() if self.over == "mean" else (near + far).sum()

    def _logistic(self, told, others):
        """By how much each score is missed."""
        if self.logistic == "softplus":
            return functional.softplus(-told), functional.softplus(others)
        if self.logistic == "entropy":
            scores = torch.cat((told[:, None], others), 1)
            wanted = torch.zeros_like(scores)
            wanted[:, 0] = 1
            missed = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
            return missed[:, 0], missed[:, 1:]
        return -functional.logsigmoid(told), -functional.logsigmoid(-others)

    def _twinned(self, alike):
        """The loss of a sentence's twin among all sentences."""
        alike = anchorlib.anchor(alike, "alike")
        alike = alike / self.heat if self.cools == "divided" else alike * self.heat
        count = len(alike)
        twins = (torch.arange(count) + count // 2 + self.twin) % count
        itself = torch.eye(count, dtype=torch.bool)
        if self.contrast == "where":
            alike = torch.where(itself, -torch.inf, alike)
        elif self.excludes:
            alike = alike.masked_fill(itself, -torch.inf)
        if self.contrast == "own":
            return (alike.logsumexp(1) - alike[torch.arange(count), twins]).sum() / count
        return functional.cross_entropy(alike, twins)


@cache
def corpus() -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences (sentence, place) of words 1 and on, and how often each word occurs."""
    drawing = torch.Generator().manual_seed(3)
    ranks = torch.arange(1, WORDS)
    own = 1 / (ranks.double() + 1.5)
    topics = torch.randint(0, _TOPICS, (_SENTENCES,), generator=drawing)
    of_topic = (ranks % _TOPICS == topics[:, None]).double()
    sentences = 1 + torch.multinomial(own * (1 + 5 * of_topic), _LONG, True, generator=drawing)
    return sentences, torch.bincount(sentences.flatten(), minlength=WORDS)


_WORDS = ("word_loss@*", "loss@*", "near@grad", "far@grad")
_FAR = ("far@grad", "word_loss@*", "loss@*")
_TWINS = ("head_loss@*", "alike@grad")
_BAG = ("inner.bag@value",)
_DETACHED = r"detach|gradients come back|stop.?grad"
CASES = [
    Case(
        "others not opposed",
        "bug",
        {"opposes": False},
        _FAR,
        r"\bneg(Backward|\b|at)|\bsign\b|times",
    ),
    Case(
        "others drawn without the power",
        "bug",
        {"power": 1.0},
        ("chances@value",),
        r"\bpow|exponent",
    ),
    Case("losses of others averaged", "bug", {"sums": "mean"}, _FAR, r"\bmean|\bsum(Backward|\b)"),
    Case("hits not left out", "bug", {"spares": False}, _FAR, r"\bmask|\bfill|\bwhere"),
    Case("pairs summed", "bug", {"over": "sum"}, _WORDS, r"\bmean|\bsum(Backward|\b)|reduction"),
    Case(
        "parts summed",
        "bug",
        {"bags": "sum"},
        _BAG,
        r"\bmode\b|\bmean\b|embedding_?bag.{0,60}\bsum\b",
    ),
    Case("bags one part too far", "bug", {"shifted": True}, _BAG, r"offsets?\b|embedding_?bag"),
    Case(
        "the word itself around it",
        "data",
        {"nearest": 0},
        ("outer@value", "outer.input@value", "input:1@value", "input.1@value"),
    ),
    Case(
        "places without a word counted",
        "bug",
        {"means": "places"},
        ("head@value", "head.up@value", "head.up.input@value"),
        r"\bmean|\bdiv|\bsum(Backward|\b)|\bmask|\bcount",
    ),
    Case(
        "similarities times the temperature",
        "bug",
        {"cools": "times"},
        _TWINS,
        r"\bdiv|\bmul|temperature|times",
    ),
    Case(
        "sentences of any length",
        "bug",
        {"lengths": "no"},
        ("head@value", "alike@value"),
        r"normali[sz]e|\bnorm\b|\bdiv|vector_?norm",
    ),
    Case(
        "sentences among their own others",
        "bug",
        {"excludes": False},
        _TWINS,
        r"\bmask|\bfill|diagonal|\binf",
    ),
    Case(
        "twin one further",
        "bug",
        {"twin": 1},
        _TWINS,
        r"\btargets?\b|\blabels?\b|\bindices|\bindex",
    ),
    Case(
        "words detached from the head",
        "bug",
        {"flows": False},
        ("inner*@grad", "inner.*@*grad"),
        _DETACHED,
    ),
    Case(
        "vectors drawn too wide",
        "data",
        {"spread": 12.0},
        ("inner.words.weight@value", "inner.bag.weight@value", "outer.weight@value"),
    ),
    Case(
        "words' gradients not forgotten",
        "bug",
        {"clears": False},
        ("inner.*weight@*grad", "outer.weight@*grad"),
        r"zero_grad|accumul|clear|\badd",
        step=1,
    ),
    Case(
        "squares begin at a tenth",
        "bug",
        {"begun": 0.1},
        UPDATES,
        r"initial_accumulator|accumulator|opt\.sum\b",
    ),
    Case("rate does not fall", "bug", {"falls": False}, UPDATES, r"\blr\b|learning rate", step=1),
    Case("logistic by softplus", "benign", {"logistic": "softplus"}),
    Case("logistic by cross-entropy", "benign", {"logistic": "entropy"}),
    Case("scores by einsum", "benign", {"scores": "einsum"}),
    Case("bags by gathering", "benign", {"lookup": "gather"}),
    Case("bags by counts", "benign", {"lookup": "counts"}),
    Case("bags with padding", "benign", {"lookup": "padded"}),
    Case("sparse gradients", "benign", {"sparse": True}),
    Case("lengths by roots", "benign", {"lengths": "own"}),
    Case("twins by logsumexp", "benign", {"contrast": "own"}),
    Case("pairs and sentences turned", "benign", {"turned": True}),
    Case(
        "scores by einsum, low precision", "benign", {"scores": "einsum"}, reference={"low": True}
    ),
    Case("head by einsum, low precision", "benign", {"linear": "einsum"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case(
        "other order",
        "data",
        {"order": 1},
        ("input*@value", "inner.words@value", "inner*@value", "outer*@value"),
    ),
    Case("similarities left out by where", "equal", {"contrast": "where"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 4}),
]
