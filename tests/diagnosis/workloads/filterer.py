"""A Kalman filter that follows the ink of digits from row to row, learnt through its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    Start,
    Workload,
    clear,
    cut,
    digits,
    renamed,
    warmed,
)
from tests.diagnosis.workloads.kalman import SEEN, Model

_SHOWN = 12
"""Digits that the evaluation sees."""


@dataclass(frozen=True)
class Filterer(Workload):
    """Rows are noisy and some show nothing; the path is where ink is, and how much came so far.

    bent: how the diagonals of the sensor's factors become positive, by "softplus" or "exp".
    factor: which factor of a covariance is turned, the second as it is "right", or the first
        ("turned"). turned_moves: whether the covariance is moved by the transition the other way.
    noisy: whether innovations vary by the observation's noise too. masks: whether rows that show
        nothing change nothing. innovations: whether they are taken "before" or "after" the update.
    stale: whether updates begin with the covariance that the last one left. narrowed: the
        covariance after an update, by the form of "Joseph", its first of two "halves", or
        otherwise. detaches: whether states are detached at each row.
    both: whether the log determinant has both factors. missed: the states that are held against
        the path, the "states" or the "predicted" ones. places: how many of their numbers.
    surprise: the weight of the innovations' likelihood. late: by how many rows targets come late.
    slow: the factor of the filter's learning rate. warmup: steps of rising rate.
    clips: whether gradients are bounded "after" the backward pass or "before" it.
    parts: micro-batches a step. low: whether the sensor runs under autocast to bfloat16.
    named: what a layer is called. logs: whether losses are kept.
    linear, gain, products, even, double, density, keeps: other ways to write the same mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.1
    bent: str = "softplus"
    factor: str = "right"
    turned_moves: bool = False
    noisy: bool = True
    masks: bool = True
    innovations: str = "before"
    stale: bool = False
    narrowed: str = "Joseph"
    detaches: bool = False
    both: bool = True
    missed: str = "states"
    places: int = SEEN
    surprise: float = 0.1
    late: int = 0
    slow: float = 0.3
    warmup: int = 2
    clips: str = "after"
    parts: int = 1
    low: bool = False
    named: str = "lift"
    logs: bool = False
    linear: str = "torch"
    gain: str = "factor"
    products: str = "matmul"
    even: bool = False
    double: bool = False
    density: str = "own"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Model(self)
            renamed(model, {"lift": self.named})
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            drawing = torch.Generator().manual_seed(41 + 1000 * seed + self.order)
            shown = self._paths(digits()[0][:_SHOWN], drawing)
            kept = []
            for step, (images, _) in enumerate(self.images(seed)):
                paths = self._paths(images, drawing)
                clear(optimizer, self)
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                for part in cut(self.parts, *paths):
                    loss = self._loss(model, part, paths)
                    loss.backward()
                    if self.logs:
                        kept.append(loss.item())
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                if step % 2 == 1:
                    self._evaluate(model, *shown)

    def _groups(self, model):
        """The sensor's matrices, which decay; its vectors; and the filter, which learns slowly."""
        sensor = list(model.sensor.parameters())
        return [
            {"params": [one for one in sensor if one.ndim > 1]},
            {"params": [one for one in sensor if one.ndim < 2], "weight_decay": 0.0},
            {
                "params": list(model.filter.parameters()),
                "lr": self.lr * self.slow,
                "weight_decay": 0.0,
            },
        ]

    def _paths(self, images, drawing):
        """Noisy rows, which of them show something, and the path: where ink is, and how much."""
        count = len(images)
        noise = torch.randn(count, 8, 8, generator=drawing, dtype=torch.float32)
        here = torch.rand(count, 8, generator=drawing, dtype=torch.float32) > 0.2
        if self.turned and count == self.batch:
            noise, here = noise.flip(0), here.flip(0)
        ink = images + 1
        middle = (ink * torch.linspace(-1, 1, 8)).sum(2) / (ink.sum(2) + 0.5)
        path = torch.stack((middle, ink.mean(2).cumsum(1) / 2 - 1), 2)
        rows = torch.where(here[..., None], images, -1.0) + 0.3 * noise.to(images.dtype)
        return rows, here, path

    def _loss(self, model, part, whole):
        """A micro-batch's share of the error and of the surprise."""
        rows, here, path = part
        states, predicted, innovations, spreads = model(rows, here)
        told = states if self.missed == "states" else predicted
        wanted = path.roll(self.late, 1)
        mse = functional.mse_loss(told[..., : self.places], wanted) * (len(path) / len(whole[2]))
        nll = (self._surprise(innovations, spreads) * here).sum() / whole[1].sum()
        loss = mse + self.surprise * nll
        for one, name in ((mse, "mse"), (nll, "nll"), (loss, "loss")):
            anchorlib.anchor(one, name)
        return loss

    def _surprise(self, innovations, spreads):
        """The negative log likelihood of each innovation."""
        if self.density == "torch":
            found = MultivariateNormal(torch.zeros_like(innovations), spreads)
            return -found.log_prob(innovations)
        factor = torch.linalg.cholesky(spreads)
        white = torch.linalg.solve_triangular(factor, innovations[..., None], upper=False)
        far = white.square().sum((-2, -1))
        size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        size = 2 * size if self.both else size
        return 0.5 * (far + size + SEEN * math.log(2 * math.pi))

    @torch.no_grad()
    def _evaluate(self, model, rows, here, path):
        """The error of paths that are not learnt from."""
        model.eval()
        states, *_ = model(rows, here)
        anchorlib.anchor((states[..., :SEEN] - path).square().mean().sqrt(), "rmse")
        model.train()


_MOVED = ("filter.predict*@value",)
_UPDATED = ("filter.update*@value",)
_SPREADS = ("spreads@value", "filter:3@value", "output:3@value")
_INNOVATIONS = ("innovations@value", "filter.update:2@value", "filter:2@value", "output:2@value")
_THROUGH = tuple(
    f"filter.{name}*@*grad" for name in ("update", "predict", "first", "prior", "process")
)
_FILTER = tuple(f"filter.*@{kind}" for kind in ("updated", "delta", "opt.*"))
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|mat|input|weight|target|condition) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along|transpose|permute"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_LOW = {"low": True}
CASES = [
    Case(
        "factors the wrong way round",
        "bug",
        {"factor": "turned"},
        ("filter.prior@value", "filter.process@value"),
        rf"{_ORDER}|{_GIVEN}|\bMm(Backward|\b)|TBackward",
    ),
    Case(
        "covariance moved by the turned transition",
        "bug",
        {"turned_moves": True},
        ("filter.predict:1@value",),
        rf"{_ORDER}|{_GIVEN}|\b[BM]mm?(Backward|\b)|\bmatmul|TBackward",
    ),
    Case(
        "rows of nothing change states",
        "bug",
        {"masks": False},
        _UPDATED,
        r"\b[Ww]here|\bmask|condition",
    ),
    Case(
        "innovations without the noise of observations",
        "bug",
        {"noisy": False},
        (*_SPREADS, *_UPDATED),
        r"\bAdd(Backward|\b)",
    ),
    Case(
        "half of Joseph's form",
        "bug",
        {"narrowed": "halves"},
        ("filter.update:1@value",),
        r"\bAdd(Backward|\b)",
    ),
    Case(
        "covariance of the row before",
        "bug",
        {"stale": True},
        (*_UPDATED, *_SPREADS),
        rf"{_GIVEN}|computes it from|predict|\b[BM]mm?(Backward|\b)|\bmatmul|stale",
    ),
    Case(
        "innovations after the update",
        "bug",
        {"innovations": "after"},
        _INNOVATIONS,
        rf"{_GIVEN}|computes it from|\b[BM]mm?(Backward|\b)|\bmatmul|\bSub(Backward|\b)|\bstate",
    ),
    Case(
        "states detached at each row",
        "bug",
        {"detaches": True},
        _THROUGH,
        rf"{_DETACHED}|(lacks|alone|without).{{0,60}}Backward",
    ),
    Case(
        "variances by exp",
        "bug",
        {"bent": "exp"},
        ("sensor:1@value",),
        r"[Ss]oftplus|\b[Ee]xp(Backward|\b)",
    ),
    Case(
        "log determinant of one factor",
        "bug",
        {"both": False},
        ("nll@*",),
        rf"\bMul(Backward|\b)|{_GIVEN}|{_TIMES}|\bAdd(Backward|\b)",
    ),
    Case(
        "predicted states held against the path",
        "bug",
        {"missed": "predicted"},
        ("mse@*", "states@grad", "predicted@grad", "filter@grad", "filter:1@grad"),
        rf"{_GIVEN}|predicted|computes it from|gradients come back|\bstates\b",
    ),
    Case(
        "one place for both",
        "bug",
        {"places": 1},
        ("mse@*", "states@grad", "filter@grad", "output@grad"),
        r"broadcast|\bshapes?\b|\bsizes?\b|[Ee]xpand|\b[Ss]lice|\[\d+, ?\d+|\(\d+, ?\d+",
    ),
    Case(
        "path one row late",
        "bug",
        {"late": 1},
        ("mse@*",),
        rf"\b[Rr]oll|{_ORDER}|{_GIVEN}",
    ),
    Case("filter as fast as the sensor", "bug", {"slow": 1.0}, _FILTER, r"\blr\b"),
    Case(
        "clipped before the backward pass",
        "bug",
        {"clips": "before"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
    ),
    Case("plain update of covariances", "benign", {"narrowed": "plain"}),
    Case("covariances less the gain's", "benign", {"narrowed": "gain"}),
    Case("information form", "benign", {"narrowed": "information"}),
    Case("covariances made symmetric", "benign", {"even": True}),
    Case("gain by a solve", "benign", {"gain": "solve"}),
    Case("gain by an inverse", "benign", {"gain": "inverse"}),
    Case("likelihood by torch", "benign", {"density": "torch"}),
    Case("products by einsum", "benign", {"products": "einsum"}),
    Case("filter in double precision", "benign", {"double": True}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("sensor by einsum, low precision", "benign", {"linear": "einsum"}, reference=_LOW),
    Case("batch turned, low precision", "benign", {"turned": True}, reference=_LOW),
    Case("other init", "data", {"init": 1}, ("*weight@value", "filter.*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("another name", "equal", {"named": "dense"}),
    Case("losses kept", "equal", {"logs": True}),
    Case("sensor computed twice", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
