"""Words of a tree as points of the Poincaré ball: distances, negative samples, Riemannian SGD."""

from __future__ import annotations

import builtins
import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear, cut

_WIDE = 5
_NEGATIVES = 8


@dataclass(frozen=True)
class Poincare(Workload):
    """Python's exceptions should lie near those that they derive from, and far from others.

    excludes: whether negative samples are never a word's own ancestors.
    doubles: the factor of the squared distance. pairs: whose distances from the border divide it,
        those of "both" points or of the "first" alone. squares: whether distances are squared.
    over: what the softmax is over, the "samples" of a word or the "words". includes: whether the
        true sample is in its denominator. flows: whether negative samples have gradients.
    radius, heat: of the Fermi-Dirac chances. linked: the weight of their loss.
    metric: the factor of gradients, "quarter" of the square, the "whole" square or "none".
    momentum: of the steps. metered: whether it is of gradients "after" the metric or "before" it.
    edge: how far from the border points stay. projects: whether they are held there.
    burn: steps of a tenth of the rate. restarts: whether the momentum is forgotten after them.
    forgets: whether gradients are forgotten. parts: micro-batches a step.
    distance, square, entropy, chances, factor, holds, copies: other ways to write the same
        mathematics.
    """

    lr: float = 2.0
    excludes: bool = True
    doubles: float = 2.0
    pairs: str = "both"
    squares: bool = False
    over: str = "samples"
    includes: bool = True
    flows: bool = True
    radius: float = 1.5
    heat: float = 0.5
    linked: float = 0.5
    metric: str = "quarter"
    momentum: float = 0.6
    metered: str = "after"
    edge: float = 0.2
    projects: bool = True
    burn: int = 2
    restarts: bool = False
    forgets: bool = True
    parts: int = 1
    distance: str = "acosh"
    square: str = "difference"
    entropy: str = "torch"
    chances: str = "logits"
    factor: str = "square"
    holds: str = "where"
    copies: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            words, _ = _tree()
            model = Ball(self, len(words))
            optimizer = Riemannian(self, model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._samples(seed)):
                for group in optimizer.param_groups:
                    group["lr"] = self.lr * (0.1 if step < self.burn else 1.0)
                if self.restarts and step == self.burn:
                    optimizer.state.clear()
                if self.forgets:
                    clear(optimizer, self)
                for (part,) in cut(self.parts, batch):
                    self._back(*self._losses(model(part)))
                optimizer.step()

    def _samples(self, seed):
        """Words, an ancestor of each, and words that are none (word, 2 + negatives)."""
        words, pairs = _tree()
        known: dict[int, set[int]] = {}
        for word, ancestor in pairs:
            known.setdefault(word, {word}).add(ancestor)
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            found = []
            for at in torch.randint(0, len(pairs), (self.batch,), generator=dealing).tolist():
                word, ancestor = pairs[at]
                out = known[word] if self.excludes else {word}
                free = torch.tensor([one for one in range(len(words)) if one not in out])
                drawn = torch.rand(_NEGATIVES, generator=dealing) * len(free)
                found.append([word, ancestor, *free[drawn.long()].tolist()])
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            samples = torch.tensor(found)
            yield samples.flip(0) if self.turned else samples

    def _losses(self, distances):
        """The loss of the ranks and the loss of the links."""
        distances = distances.square() if self.squares else distances
        logits = anchorlib.anchor(-distances, "logits")
        return (
            self._ranked(logits) / self.parts,
            self.linked * self._linked(distances) / self.parts,
        )

    def _ranked(self, logits):
        """How improbable a word's ancestor is among its samples."""
        if not self.includes:
            return (logits[:, 1:].logsumexp(1) - logits[:, 0]).mean()
        if self.entropy == "steps":
            high = (logits - logits.max(1, keepdim=True).values.detach()).exp()
            return -(high[:, 0] / high.sum(1)).log().mean()
        return -logits.log_softmax(1 if self.over == "samples" else 0)[:, 0].mean()

    def _linked(self, distances):
        """How improbable links to ancestors, and no links to others, are."""
        target = torch.zeros_like(distances)
        target[:, 0] = 1
        logits = (self.radius - distances) / self.heat
        if self.chances == "logits":
            missed = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        elif self.chances == "softplus":
            missed = functional.softplus((1 - 2 * target) * logits)
        else:
            chance = 1 / (torch.exp(-logits) + 1)
            missed = functional.binary_cross_entropy(chance, target, reduction="none")
        return missed.mean()

    def _back(self, ranked, linked):
        """Both losses' gradients."""
        loss = ranked + linked
        for one, name in ((ranked, "rank_loss"), (linked, "link_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()


class Distance(nn.Module):
    """Distances in the ball, by one of four formulas."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, one, other):
        """The distances of points (word, 1, part) and (word, sample, part)."""
        how = self.how
        if how.distance == "wide":
            return self._acosh(one.double(), other.double()).to(one.dtype)
        if how.distance == "moebius":
            return 2 * torch.atanh(torch.linalg.vector_norm(_moved(-one, other), dim=-1))
        if how.distance == "asinh":
            far = torch.linalg.vector_norm(one - other, dim=-1)
            inner = (1 - one.square().sum(-1)).sqrt() * (1 - other.square().sum(-1)).sqrt()
            return 2 * torch.asinh(far / inner)
        return self._acosh(one, other)

    def _acosh(self, one, other):
        how = self.how
        first, second = one.square().sum(-1), other.square().sum(-1)
        if how.square == "difference":
            far = (one - other).square().sum(-1)
        else:
            far = first + second - 2 * (other @ one.transpose(1, 2))[..., 0]
        inner = (1 - first) * (1 - (second if how.pairs == "both" else first))
        x = 1 + how.doubles * far / inner
        if how.distance == "log":
            return torch.log(x + ((x - 1) * (x + 1)).sqrt())
        return torch.acosh(x)


class Ball(nn.Module):
    """A point for each word."""

    def __init__(self, how, count: int) -> None:
        super().__init__()
        self.how = how
        self.embed, self.distance = nn.Embedding(count, _WIDE), Distance(how)
        nn.init.uniform_(self.embed.weight, -0.45, 0.45)

    def forward(self, samples):
        """The distances of words from their samples; samples: (word, 2 + negatives)."""
        how = self.how
        points = self.embed(samples)
        points = points.clone().contiguous() if how.copies else points
        one, other = points[:, :1], points[:, 1:]
        if not how.flows:
            other = torch.cat((other[:, :1], other[:, 1:].detach()), 1)
        return self.distance(one, other)


class Riemannian(torch.optim.Optimizer):
    """SGD with momentum in the ball: gradients by its metric, steps that stay inside."""

    def __init__(self, how, parameters) -> None:
        super().__init__(list(parameters), {"lr": how.lr, "momentum": how.momentum})
        self.how = how

    @torch.no_grad()
    def step(self, closure=None):
        """One step."""
        told = None if closure is None else closure()
        for group in self.param_groups:
            for points in group["params"]:
                self._step(points, group)
        return told

    def _step(self, points, group):
        grad, factor, state = points.grad, self._factor(points), self.state[points]
        if self.how.metered == "after":
            grad = grad * factor
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(points)
        moved = state["momentum_buffer"].mul_(group["momentum"]).add_(grad)
        if self.how.metered == "before":
            moved = moved * factor
        points.sub_(group["lr"] * moved)
        if self.how.projects:
            points.copy_(self._held(points))

    def _factor(self, points):
        """What turns a gradient into the ball's."""
        how = self.how
        square = points.square().sum(1, keepdim=True)
        if how.metric == "none":
            return torch.ones_like(square)
        if how.factor == "conformal":
            return 1 / (2 / (1 - square)) ** 2
        return (1 - square) ** 2 / (4 if how.metric == "quarter" else 1)

    def _held(self, points):
        """Points that are held inside the border."""
        how = self.how
        most = 1 - how.edge
        length = torch.linalg.vector_norm(points, dim=1, keepdim=True)
        if how.holds == "factor":
            return points * (most / length).clamp(max=1)
        return torch.where(length > most, points / length * most, points)


def _moved(one, other):
    """Möbius addition."""
    dot = (one * other).sum(-1, keepdim=True)
    first, second = one.square().sum(-1, keepdim=True), other.square().sum(-1, keepdim=True)
    above = (1 + 2 * dot + second) * one + (1 - first) * other
    return above / (1 + 2 * dot + first * second)


@cache
def _tree() -> tuple[list[str], list[tuple[int, int]]]:
    """The names of Python's exceptions, and each with every one that it derives from."""
    kinds = {
        one.__name__: one
        for one in vars(builtins).values()
        if isinstance(one, type) and issubclass(one, BaseException)
    }
    words = sorted(kinds)
    pairs = [
        (at, words.index(above.__name__))
        for at, word in enumerate(words)
        for above in kinds[word].__mro__[1:]
        if above.__name__ in kinds
    ]
    return words, pairs


_FAR = ("distance@value", "output@value")
_RANKED = ("rank_loss@*", "loss@*", "logits@grad")
_LINKED = ("link_loss@*", "loss@*", "output@grad", "distance@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_FACTOR = rf"factors?\b|{_TIMES}|metric|\bMul|\bDiv"
CASES = [
    Case("distance not doubled", "bug", {"doubles": 1.0}, _FAR, rf"\bMul|{_TIMES}"),
    Case(
        "border distance of one point twice",
        "bug",
        {"pairs": "first"},
        _FAR,
        rf"\bMul|\bRsub|\bDiv|{_GIVEN}",
    ),
    Case(
        "distances squared",
        "bug",
        {"squares": True},
        ("logits@value", *_LINKED),
        r"\bPow|square",
    ),
    Case("softmax over words", "bug", {"over": "words"}, _RANKED, r"\bdim\b"),
    Case(
        "true sample not in the denominator",
        "bug",
        {"includes": False},
        _RANKED,
        r"\bSlice|softmax|logsumexp",
    ),
    Case(
        "negative samples detached",
        "bug",
        {"flows": False},
        ("embed@grad", "embed.weight@grad"),
        r"detach|gradients come back|\b(lacks|alone)\b.{0,60}(Slice|Cat)",
    ),
    Case(
        "radius with the other sign",
        "bug",
        {"radius": -1.5},
        _LINKED,
        rf"\bR?[Ss]ub|\bAdd(Backward|\b)|{_GIVEN}|\| -1\.5",
    ),
    Case(
        "heat multiplied",
        "bug",
        {"heat": 2.0},
        _LINKED,
        rf"\bDiv|\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case("gradients without the metric", "bug", {"metric": "none"}, UPDATES, _FACTOR),
    Case("metric not quartered", "bug", {"metric": "whole"}, UPDATES, _FACTOR),
    Case(
        "metric after the momentum",
        "bug",
        {"metered": "before"},
        UPDATES,
        rf"{_FACTOR}|momentum",
    ),
    Case(
        "points not held inside",
        "bug",
        {"projects": False},
        UPDATES,
        rf"\bnorm|clamp|clip|project|bound|{_FACTOR}",
    ),
    Case("no burn-in", "bug", {"burn": 0}, UPDATES, r"\blr\b"),
    Case(
        "momentum forgotten after the burn-in",
        "bug",
        {"restarts": True},
        UPDATES,
        r"momentum|\bstate\b",
        step=2,
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"forgets": False},
        ("*@grad", *UPDATES),
        r"zero_grad|accumulat|forgot|not (cleared|zeroed)|earlier gradients?",
        step=1,
    ),
    Case("inverse cosine by log", "benign", {"distance": "log"}),
    Case("distance by an inverse sine", "benign", {"distance": "asinh"}),
    Case("distance by Moebius addition", "benign", {"distance": "moebius"}),
    Case("distances in float64", "benign", {"distance": "wide"}),
    Case("squares of differences by a product", "benign", {"square": "product"}),
    Case("entropy by exponentials", "benign", {"entropy": "steps"}),
    Case("chances by exponentials", "benign", {"chances": "plain"}),
    Case("metric by the conformal factor", "benign", {"factor": "conformal"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("words turned", "benign", {"turned": True}),
    Case("points held by a factor", "benign", {"holds": "factor"}),
    Case("links by softplus", "benign", {"chances": "softplus"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("ancestors as negative samples", "data", {"excludes": False}, ("input*@value",)),
    Case("again", "equal"),
    Case("points copied", "equal", {"copies": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
