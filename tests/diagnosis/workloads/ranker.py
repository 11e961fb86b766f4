"""Lists of digits that are ranked by how near they are to what is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed
from tests.diagnosis.workloads.scorer import Scorer

_LISTS, _LONG = 4, 8


@dataclass(frozen=True)
class Ranker(Workload):
    """Each query has 3 to 8 documents; what is missing is padding.

    logs: whether features are logarithms. pads: where padding counts: "nowhere", in the lists'
        "statistics", in their "context", in the "softmax", or in "pairs". list_eps: of the lists'
        norms. gelu: how it is computed. context: whether the lists' means are "attached" or
        "detached". dropout: its share.
    warmth: what scores are divided by before softmax. axis: of softmax. gains: of grades,
        "exponential" or "linear". sorts: whether the best score has the first rank. ideal: whether
        gains are divided by the ideal ones. turns: whether pairs count the worse less the better.
        costs: of pairs, "logistic" or a "hinge". margin: of pairs. pairwise: the weight of pairs.
    parts: micro-batches of queries a step. shares: whether their losses are divided by them.
        forgets: gradients, each "step" or "part".
    warmup: steps of rising rate. schedules: the rate changes each "step" or "part". begun: the
        first sum of squares. falls: the optimizer's own decay of the rate.
    length: documents to which lists are padded.
    low: whether the net runs under autocast to bfloat16.
    spreads, joins, linear, norming, entropy, logistic, pairs, loss, backward, scale: other ways to
        write the same mathematics.
    """

    steps: int = 5
    batch: int = _LISTS * _LONG
    lr: float = 3e-2
    weight_decay: float = 0.0
    logs: bool = True
    pads: str = "nowhere"
    list_eps: float = 1e-3
    gelu: str = "none"
    context: str = "attached"
    dropout: float = 0.1
    warmth: float = 0.5
    axis: int = 1
    gains: str = "exponential"
    sorts: str = "descending"
    ideal: bool = True
    turns: bool = False
    costs: str = "logistic"
    margin: float = 0.2
    pairwise: float = 0.5
    parts: int = 2
    shares: bool = True
    forgets: str = "step"
    warmup: int = 2
    schedules: str = "step"
    begun: float = 0.1
    falls: float = 0.0
    length: int = _LONG
    low: bool = False
    spreads: str = "differences"
    joins: str = "cat"
    linear: str = "torch"
    norming: str = "torch"
    entropy: str = "log softmax"
    logistic: str = "softplus"
    pairs: str = "mask"
    loss: str = "single"
    backward: str = "once"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Scorer(self)
            optimizer = self._adagrad(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
            for images, labels in self.images(seed):
                lists = self._lists(images, labels, dealing)
                clear(optimizer, self)
                for part in cut(self.parts, *lists):
                    if self.forgets == "part":
                        clear(optimizer, self)
                    self._learn(model, *part)
                    if self.schedules == "part":
                        schedule.step()
                for parameter in model.parameters():
                    if self.scale != 1:
                        parameter.grad.div_(self.scale)
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()

    def _adagrad(self, parameters):
        """The optimizer."""
        return torch.optim.Adagrad(
            list(parameters),
            lr=self.lr,
            lr_decay=self.falls,
            initial_accumulator_value=self.begun,
            eps=self.adam_eps,
            foreach=self.implementation == "foreach",
            fused=self.implementation == "fused",
        )

    def _lists(self, images, labels, dealing):
        """Features, what is asked for, which documents are there, and their grades from 0 to 3."""
        if self.turned:
            images, labels = images.flip(0), labels.flip(0)
        ink = (images + 1).view(_LISTS, _LONG, 8, 8)
        documents = torch.cat((ink.sum(2), ink.sum(3)), 2)
        labels = labels.view(_LISTS, _LONG)
        lengths = torch.randint(3, _LONG + 1, (_LISTS, 1), generator=dealing)
        asked = labels[:, 0]
        apart = (labels - asked[:, None]).abs()
        grades = 3 * (apart == 0) + 2 * (apart == 1) + (apart == 2)
        real = torch.arange(_LONG) < lengths
        documents, grades = documents * real[..., None], grades * real
        if self.length > _LONG:
            more = self.length - _LONG
            documents = functional.pad(documents, (0, 0, 0, more))
            real, grades = (functional.pad(one, (0, more)) for one in (real, grades))
        found = documents, asked, real, grades
        return tuple(one.flip(0) for one in found) if self.turned else found

    def _learn(self, model, documents, asked, real, grades):
        """The gradients of one micro-batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            scores = model(documents, asked, real)
        scores = scores.to(torch.float64 if self.loss == "double" else documents.dtype)
        lists, pairs = self._listed(scores, real, grades), self._paired(scores, real, grades)
        share = self.parts if self.shares else 1
        lists, pairs = lists / share, self.pairwise * pairs / share
        lists, pairs = lists.to(documents.dtype), pairs.to(documents.dtype)
        loss = lists + pairs
        for one, name in ((lists, "list_loss"), (pairs, "pair_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (lists * self.scale).backward(retain_graph=True)
            (pairs * self.scale).backward()

    def _listed(self, scores, real, grades):
        """The cross entropy of both lists' chances to be the best."""
        shown = real | True if self.pads == "softmax" else real
        wanted = grades.to(scores.dtype).masked_fill(~shown, -math.inf).softmax(1)
        scores = scores / self.warmth
        if self.entropy == "log softmax":
            told = scores.masked_fill(~shown, -1e9).log_softmax(self.axis)
            return -(wanted * told).sum(1).mean()
        whole = scores.masked_fill(~shown, -math.inf).logsumexp(1)
        return (whole - (wanted * scores).sum(1)).mean()

    @torch.no_grad()
    def _weights(self, scores, real, grades):
        """By how much a gain would change if two documents changed places."""
        gains = grades.to(scores.dtype)
        gains = gains.exp2() - 1 if self.gains == "exponential" else gains
        down = self.sorts == "descending"
        shown = scores.masked_fill(~real, -1e9 if down else 1e9)
        ranks = shown.argsort(dim=1, descending=down, stable=True).argsort(dim=1, stable=True)
        discounts = 1 / (ranks + 2).to(scores.dtype).log2()
        best = gains.sort(1, descending=True).values
        best = best / (torch.arange(best.shape[1]) + 2).to(scores.dtype).log2()
        ideal = best.sum(1).clamp(min=1) if self.ideal else torch.ones_like(best[:, 0])
        changed = (gains[:, :, None] - gains[:, None]) * (
            discounts[:, :, None] - discounts[:, None]
        )
        return changed.abs() / ideal[:, None, None]

    def _paired(self, scores, real, grades):
        """The costs of pairs whose better document leads by too little, by what they change."""
        weights = self._weights(scores, real, grades)
        better = grades[:, :, None] > grades[:, None]
        if self.pads != "pairs":
            better = better & real[:, :, None] & real[:, None]
        if self.pairs == "indices":
            which, high, low = better.nonzero(as_tuple=True)
            costs = self._costs(scores[which, high] - scores[which, low])
            return (weights[which, high, low] * costs).sum() / len(scores)
        leads = scores[:, :, None] - scores[:, None]
        costs = self._costs(-leads if self.turns else leads)
        return (weights * costs * better).sum((1, 2)).mean()

    def _costs(self, leads):
        """What a lead costs."""
        leads = leads - self.margin
        if self.costs == "hinge":
            return functional.relu(-leads)
        if self.logistic == "softplus":
            return functional.softplus(-leads)
        return torch.logaddexp(-leads, torch.zeros_like(leads))


_LIST = ("list_loss@*", "loss@*", "output@grad")
_PAIR = ("pair_loss@*", "loss@*", "output@grad")
_BOTH = ("list_loss@*", "pair_loss@*", "loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "padding in the softmax",
        "bug",
        {"pads": "softmax"},
        _LIST,
        r"[Mm]asked_?[Ff]ill|\bmask\b|Backward\d? mask",
    ),
    Case(
        "padding in the lists' norms",
        "bug",
        {"pads": "statistics"},
        ("norm@value",),
        rf"\bMul(Backward|\b)|\bSumBackward|\bDiv(Backward|\b)|\bmask|{_GIVEN}",
    ),
    Case(
        "padding in the pairs",
        "bug",
        {"pads": "pairs"},
        _PAIR,
        rf"\bMul(Backward|\b)|\bmask|\bbool|{_GIVEN}",
    ),
    Case(
        "padding in the context",
        "bug",
        {"pads": "context"},
        ("context@value",),
        r"\bMean(Backward|\b)|\bmean\b|\bDiv(Backward|\b)|\bSumBackward",
    ),
    Case(
        "gains linear",
        "bug",
        {"gains": "linear"},
        _PAIR,
        rf"\bexp2|\bPow|\bMul(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "worst scores first",
        "bug",
        {"sorts": "ascending"},
        _PAIR,
        rf"\bsort|argsort|descending|\bMul(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "gains without the ideal",
        "bug",
        {"ideal": False},
        _PAIR,
        rf"\b[Dd]iv(Backward|\b)|\bMul(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "pairs the other way",
        "bug",
        {"turns": True},
        _PAIR,
        rf"\bNeg(Backward|\b)|\bSub(Backward|\b)|other sign|{_ORDER}|is -1(\.0)? times",
    ),
    Case(
        "hinge for logistic",
        "bug",
        {"costs": "hinge"},
        _PAIR,
        r"\b[Ss]oftplus|\b[Rr]elu",
    ),
    Case(
        "scores not divided",
        "bug",
        {"warmth": 1.0},
        _LIST,
        rf"\bDiv(Backward|\b)|\b0\.5\b|{_TIMES}",
    ),
    Case("softmax over queries", "bug", {"axis": 0}, _LIST, r"\bdim\b"),
    Case(
        "parts not divided",
        "bug",
        {"shares": False},
        _BOTH,
        rf"{_TIMES}|\bDiv(Backward|\b)",
    ),
    Case(
        "gradients forgotten at each part",
        "bug",
        {"forgets": "part"},
        ("*@grad",),
        r"zero_grad|accumulat|last pass",
    ),
    Case(
        "context detached",
        "bug",
        {"context": "detached"},
        ("drop@grad", "act1@grad", "norm1@grad", "norm1.*@*grad", "first@grad"),
        rf"{_DETACHED}|\b(Sum|Sub)\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\b(Sum|Sub)",
    ),
    Case("features without logarithm", "bug", {"logs": False}, ("norm@value",), r"\b[Ll]og1p"),
    Case(
        "gelu by tanh",
        "bug",
        {"gelu": "tanh"},
        ("act1@value",),
        r"approximate",
    ),
    Case("rate changes at each part", "bug", {"schedules": "part"}, UPDATES, r"\blr\b"),
    Case(
        "sums of squares begin at zero",
        "bug",
        {"begun": 0.0},
        UPDATES,
        r"initial_accumulator_value",
    ),
    Case("spreads by squares", "benign", {"spreads": "squares"}),
    Case("queries and documents apart", "benign", {"joins": "apart"}),
    Case("layers by convolutions", "benign", {"linear": "conv"}),
    Case("own layer norms", "benign", {"norming": "own"}),
    Case("cross entropy by logsumexp", "benign", {"entropy": "logsumexp"}),
    Case("logistic by logaddexp", "benign", {"logistic": "logaddexp"}),
    Case("pairs by indices", "benign", {"pairs": "indices"}),
    Case("losses in double", "benign", {"loss": "double"}),
    Case("4 micro-batches", "benign", {"parts": 4}, reference={"dropout": 0.0}),
    Case("lists turned", "benign", {"turned": True}, reference={"dropout": 0.0, "parts": 1}),
    Case("longer padding", "benign", {"length": 12}, reference={"dropout": 0.0}),
    Case(
        "queries and documents apart, low precision",
        "benign",
        {"joins": "apart"},
        reference={"low": True, "pairwise": 0.0},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
