"""Which ads are clicked and lead to a purchase: two tasks share experts and many embeddings."""

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
)
from tests.diagnosis.workloads.bidder_net import COLUMNS, PLACES, SIZES, TOPICS, Bidder

_ROWS, _SHOWN = 640, 64
"""Impressions that are known, and how many of them, the last, the evaluation sees."""
_SEEN, _LIKED = 6, 4
"""The most ads that a history holds, and the most topics that a user likes."""
_KEPT = 0.4
"""The share of impressions without a click that were not thrown away."""


@dataclass(frozen=True)
class Bidding(Workload):
    """Impressions of ads: the chance of a click, and of a click with a purchase after it.

    pads: whether the bag leaves out what fills a history. begins: what is taken off the running
        sum of lengths where rows' topics begin, their "own" lengths or the "first" one.
    crosses: what is learnt is multiplied by the "first" features or by the "last" ones.
    over: the axis of the gates' softmax, 1: experts. dropout: in the towers.
    positive: the weight of clicks. whole: whether a purchase needs a click. clicks: whether its
        chance is "attached" or "detached" there. trusts: the sign of the doubts by which the
        losses are weighted.
    fast: the learning rate of embeddings. begun: what their sums of squares begin with.
    clip: of the gradients of all but embeddings. warmup: steps of rising rate of all but them.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    history, topics, crossing, experts, mixing, both, backward, sparse, keeps: other ways to write
        the same mathematics.
    """

    steps: int = 5
    batch: int = 32
    lr: float = 1e-2
    weight_decay: float = 0.0
    decoupled: bool = False
    pads: bool = True
    begins: str = "own"
    crosses: str = "first"
    over: int = 1
    dropout: float = 0.1
    positive: float = 1.5
    whole: bool = True
    clicks: str = "attached"
    trusts: float = -1.0
    fast: float = 0.05
    begun: float = 0.1
    clip: float = 0.5
    warmup: int = 3
    wakes: bool = True
    low: bool = False
    history: str = "torch"
    topics: str = "torch"
    crossing: str = "ranked"
    experts: str = "loop"
    mixing: str = "softmax"
    both: str = "chances"
    backward: str = "once"
    sparse: bool = False
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Bidder(self)
            tables = [table.weight for table in model.tables()]
            rest = [one for one in model.parameters() if all(one is not table for table in tables)]
            optimizers = [
                torch.optim.Adagrad(
                    tables, lr=self.fast, initial_accumulator_value=self.begun, foreach=False
                ),
                self.adam(rest),
            ]
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizers[1], lambda step: min(1.0, (step + 1) / (self.warmup + 1))
            )
            session.watch(model, tensors="*", optimizer=optimizers)
            torch.manual_seed(seed)
            shown = _batch(torch.arange(_ROWS - _SHOWN, _ROWS))
            for step, batch in enumerate(self._batches(seed)):
                if step % 2 == 0:
                    self._evaluate(model, *shown)
                for optimizer in optimizers:
                    clear(optimizer, self)
                self._learn(model, *batch)
                nn.utils.clip_grad_norm_(rest, self.clip)
                for optimizer in optimizers:
                    optimizer.step()
                schedule.step()

    def _batches(self, seed):
        """Impressions that are dealt, step by step, each once at most."""
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        dealt = torch.randperm(_ROWS - _SHOWN, generator=dealing)
        for step, chosen in enumerate(dealt.split(self.batch)[: self.steps]):
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield _batch(chosen.flip(0) if self.turned else chosen)

    def _told(self, model, features):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(*features)
        return [one.to(features[-1].dtype) for one in told]

    @torch.no_grad()
    def _evaluate(self, model, features, clicked, _bought):
        """The loss of clicks over that of their rate; nobody knows yet where an ad will stand."""
        names, places, *others = features
        model.eval()
        click, _ = self._told(model, (names, torch.zeros_like(places), *others))
        rate = clicked.mean().expand_as(clicked)
        missed = functional.binary_cross_entropy_with_logits(click, clicked)
        anchorlib.anchor(missed / functional.binary_cross_entropy(rate, clicked), "entropy")
        model.train(self.wakes)

    def _learn(self, model, features, clicked, bought):
        """The gradients of both tasks' losses."""
        weights = torch.where(clicked > 0, 1.0, 1 / _KEPT)
        anchorlib.anchor(weights, "weights")
        click, purchase = self._told(model, features)
        positive = torch.tensor(self.positive)
        missed = functional.binary_cross_entropy_with_logits(
            click, clicked, weights, reduction="sum", pos_weight=positive
        )
        losses = missed / weights.sum(), self._both(click, purchase, bought, weights)
        for one, name in zip(losses, ("click_loss", "both_loss"), strict=True):
            anchorlib.anchor(one, name)
        weighted = torch.exp(self.trusts * model.doubts) * torch.stack(losses) + model.doubts
        loss = anchorlib.anchor(weighted.sum(), "loss")
        if self.backward == "once":
            loss.backward()
        else:
            for one in weighted:
                one.backward(retain_graph=True)

    def _both(self, click, purchase, bought, weights):
        """The loss of clicks with purchases, over all impressions."""
        if self.both == "logits":
            other = torch.stack((-click, -purchase, -click - purchase)).logsumexp(0)
            missed = functional.binary_cross_entropy_with_logits(-other, bought, reduction="none")
            return missed @ (weights / weights.sum())
        clicks = click.sigmoid()
        clicks = clicks.detach() if self.clicks == "detached" else clicks
        chance = clicks * purchase.sigmoid() if self.whole else purchase.sigmoid()
        missed = functional.binary_cross_entropy(chance, bought, weights, reduction="sum")
        return missed / weights.sum()


@cache
def _impressions():
    """Names, places, histories, topics, their shares and number, numbers, clicks and purchases."""
    drawing = torch.Generator().manual_seed(19)

    def normal(*shape):
        return torch.randn(*shape, generator=drawing, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=drawing, dtype=torch.float64)

    # few ads are shown often, as everywhere
    names = [(uniform(_ROWS).square() * size).long() for size in SIZES]
    places = (uniform(_ROWS) * PLACES).long()
    seen = (uniform(_ROWS, 1) * (_SEEN + 1)).long()
    history = 1 + (uniform(_ROWS, _SEEN).square() * (SIZES[0] - 1)).long()
    history = torch.where(torch.arange(_SEEN) < seen, history, 0)
    topics = (uniform(_ROWS, _LIKED) * TOPICS).long()
    shares = uniform(_ROWS, _LIKED) + 0.1
    lengths = (uniform(_ROWS) * (_LIKED + 1)).long()
    numbers = (1.5 * normal(_ROWS, COLUMNS) + 1).exp()  # counts have long tails
    liked = sum(normal(size)[name] for size, name in zip(SIZES, names, strict=True))
    liked = liked + (numbers.log() - 1) @ normal(COLUMNS) / 2
    clicked = uniform(_ROWS) < torch.sigmoid(liked - 0.3 * places)
    bought = clicked & (uniform(_ROWS) < torch.sigmoid(normal(TOPICS)[topics[:, 0]] + liked / 2))
    names = torch.stack(names, 1)
    return names, places, history, topics, shares, lengths, numbers, clicked, bought


def _batch(chosen):
    """The features of some impressions, and both targets."""
    kind = torch.get_default_dtype()
    found = [one[chosen] for one in _impressions()]
    names, places, history, topics, shares, lengths, numbers, clicked, bought = found
    held = torch.arange(_LIKED) < lengths[:, None]
    shares, numbers = shares[held].to(kind), numbers.log1p().to(kind)
    features = names, places, history, topics[held], shares, lengths, numbers
    return features, clicked.to(kind), bought.to(kind)


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "gates' softmax over the batch",
        "bug",
        {"over": 0},
        ("gates.0@value", "gates.1@value"),
        r"\bdim\b|softmax",
    ),
    Case(
        "crossed with the layer before",
        "bug",
        {"crosses": "last"},
        ("crosses.1@value",),
        rf"\bMul|{_GIVEN}|computes it from",
    ),
    Case(
        "padding counts in the history's mean",
        "bug",
        {"pads": False},
        ("history@value",),
        r"padding|\bmask",
    ),
    Case(
        "topics begin a row too late",
        "bug",
        {"begins": "first"},
        ("topics@value",),
        rf"\boffsets?\b|offset2bag|bag_size|{_ORDER}",
    ),
    Case(
        "purchases without the chance of a click",
        "bug",
        {"whole": False},
        ("both_loss@value",),
        rf"\bMul|{_GIVEN}|\b[Ss]igmoid",
    ),
    Case(
        "chance of a click detached",
        "bug",
        {"clicks": "detached"},
        ("output@grad", "towers.0*@*grad", "place*@*grad"),
        rf"{_DETACHED}|\bMul\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bMul",
    ),
    Case(
        "doubts of the other sign",
        "bug",
        {"trusts": 1.0},
        ("doubts@*grad",),
        rf"other sign|\bNeg|\bExp(Backward|\b)|\bMul|{_TIMES}",
    ),
    Case(
        "sums of squares begin at zero",
        "bug",
        {"begun": 0.0},
        UPDATES,
        r"initial_accumulator_value|accumulator|opt\.sum\b",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("numbers@value", "numbers.*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("experts at once", "benign", {"experts": "at once"}),
    Case("history by lookup and mask", "benign", {"history": "masked"}),
    Case("topics as a product", "benign", {"topics": "product"}),
    Case("low rank multiplied out", "benign", {"crossing": "whole"}),
    Case("chance of both as a logit", "benign", {"both": "logits"}),
    Case("sparse gradients of embeddings", "benign", {"sparse": True}),
    Case("a backward for each task", "benign", {"backward": "each"}),
    Case(
        "mixture divided at the end, low precision",
        "benign",
        {"mixing": "late"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("experts computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
