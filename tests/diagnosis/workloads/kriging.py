"""A Gaussian process on features of a small net, trained by its marginal likelihood."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
)

_FEATURES, _HIDDEN = 3, 12
_KNOWN, _HELD_OUT = 40, 20
"""Rows that predictions are made from, and rows that are predicted; none of them is learnt from."""


@dataclass(frozen=True)
class Kriging(Workload):
    """How a diabetes goes on within a year, of ten measurements.

    smooth: of the Matern kernel, 2.5 or 1.5. lengths: whether features are "divided" or
        "multiplied" by length scales. amplitude: the power of the kernel's amplitude. noise: the
        power of the noise's size. spreads: whether noise is added on the "diagonal" or to "all"
        pairs of rows. jitter: what the diagonal has besides.
    pace: of the running averages in the batch norm.
    volume: the factor of the logarithms on the Cholesky factor's diagonal. centres: whether the
        mean is subtracted from the targets. upper: whether Cholesky factors are taken for upper
        ones. solved: whether what is solved for is "attached" or "detached".
    returns: whether predictions have the mean added again.
    clears: whether gradients are cleared. decays: whether the kernel, noise and mean decay.
    fast: the factor of their learning rate. falls: the factor of rates from step to step.
    wakes: whether the model is in training mode again after a prediction.
    double: whether covariances are made double.
    linear, keeps, act, norming, distances, matern, drops, likelihood, backward: other ways to
        write the same mathematics.
    """

    batch: int = 48
    weight_decay: float = 0.1
    smooth: float = 2.5
    lengths: str = "divided"
    amplitude: int = 2
    noise: int = 2
    spreads: str = "diagonal"
    jitter: float = 1e-6
    pace: float = 0.1
    volume: float = 1.0
    centres: bool = True
    upper: bool = False
    solved: str = "attached"
    returns: bool = True
    clears: bool = True
    decays: bool = False
    fast: float = 3.0
    falls: float = 0.9
    wakes: bool = True
    double: bool = True
    linear: str = "torch"
    keeps: str = "all"
    act: str = "tanh"
    norming: str = "torch"
    distances: str = "differences"
    matern: str = "plain"
    drops: bool = False
    likelihood: str = "own"
    backward: str = "once"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Process(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (rows, wanted) in enumerate(self._rows(seed)):
                if step % 2 == 1:
                    self._predict(model)
                if self.clears:
                    clear(optimizer, self)
                self._back(*self._likelihood(model, model(rows), wanted))
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """The net, and what is learnt beside it."""
        inner = list(model.net.parameters())
        rest = [one for one in model.parameters() if all(one is not other for other in inner)]
        decay = self.weight_decay if self.decays else 0.0
        return [
            {"params": inner},
            {"params": rest, "lr": self.fast * self.lr, "weight_decay": decay},
        ]

    def _rows(self, seed):
        """Rows that are learnt from, and what is wanted, step by step."""
        table, targets = (part[: -_KNOWN - _HELD_OUT] for part in _patients())
        dealing = torch.Generator().manual_seed(19 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randperm(len(table), generator=dealing)[: self.batch]
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield table[chosen], targets[chosen]

    def _likelihood(self, model, covariance, wanted):
        """What a row costs: how far it is from what is expected, and how much could be expected."""
        missed = (wanted - model.mean if self.centres else wanted).to(covariance.dtype)
        fit, volume = getattr(self, f"_by_{self.likelihood}")(covariance, missed)
        return fit / len(wanted), volume / len(wanted) + math.log(2 * math.pi) / 2

    def _by_own(self, covariance, missed):
        """Half the squares, and half the logarithm of the determinant, by Cholesky."""
        lower = torch.linalg.cholesky(covariance)
        solved = torch.cholesky_solve(missed[:, None], lower, upper=self.upper)[:, 0]
        solved = solved.detach() if self.solved == "detached" else solved
        return missed @ solved / 2, self.volume * lower.diagonal().log().sum()

    def _by_triangle(self, covariance, missed):
        """The same, of what a triangle leaves of the targets."""
        lower = torch.linalg.cholesky(covariance)
        left = torch.linalg.solve_triangular(lower, missed[:, None], upper=False)
        return left.square().sum() / 2, lower.diagonal().log().sum()

    def _by_inverse(self, covariance, missed):
        """The same, by a general solver."""
        return (
            missed @ torch.linalg.solve(covariance, missed) / 2,
            torch.linalg.slogdet(covariance)[1] / 2,
        )

    def _by_blocks(self, covariance, missed):
        """The same, half of the rows first, then the other half given the first."""
        half = len(missed) // 2
        first = torch.linalg.cholesky(covariance[:half, :half])
        both = torch.linalg.solve_triangular(
            first, torch.cat((covariance[:half, half:], missed[:half, None]), 1), upper=False
        )
        across, left = both[:, :-1], both[:, -1]
        second = torch.linalg.cholesky(covariance[half:, half:] - across.mT @ across)
        missed = missed[half:] - across.mT @ left
        right = torch.linalg.solve_triangular(second, missed[:, None], upper=False)
        volume = first.diagonal().log().sum() + second.diagonal().log().sum()
        return (left.square().sum() + right.square().sum()) / 2, volume

    def _by_torch(self, covariance, missed):
        """The same, by torch's distribution; its constant is told apart."""
        told = torch.distributions.MultivariateNormal(torch.zeros_like(missed), covariance)
        volume = told.scale_tril.diagonal().log().sum()
        constant = len(missed) * math.log(2 * math.pi) / 2
        return -told.log_prob(missed) - constant - volume, volume

    def _back(self, fit, volume):
        """Both terms' gradients."""
        loss = fit + volume
        for one, name in ((fit, "fit_loss"), (volume, "volume_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            fit.backward(retain_graph=True)
            volume.backward()

    @torch.no_grad()
    def _predict(self, model):
        """What is expected of rows that are held out, how surely, and what they cost."""
        model.eval()
        table, targets = (part[-_KNOWN - _HELD_OUT :] for part in _patients())
        lower = torch.linalg.cholesky(model(table[:_KNOWN]))
        missed = (targets[:_KNOWN] - model.mean).to(lower.dtype)
        across = model.between(table[:_KNOWN], table[_KNOWN:]).to(lower.dtype)
        solved = torch.cholesky_solve(missed[:, None], lower)[:, 0]
        told = across.mT @ solved + (model.mean if self.returns else 0)
        known = torch.linalg.solve_triangular(lower, across, upper=False).square().sum(0)
        spread = model(table[_KNOWN:]).diagonal() - known
        cost = functional.gaussian_nll_loss(told, targets[_KNOWN:].to(told.dtype), spread)
        for one, name in ((told, "predicted"), (spread, "variance"), (cost, "held_out_loss")):
            anchorlib.anchor(one, name)
        model.train(self.wakes)


@cache
def _patients():
    """Ten measurements of each patient, and the disease's progress; both of spread 1."""
    from sklearn.datasets import load_diabetes  # which imports scipy: a second of a processor

    found = load_diabetes()
    table = torch.tensor(found.data * math.sqrt(len(found.data)))
    targets = torch.tensor((found.target - found.target.mean()) / found.target.std())
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(5))
    dtype = torch.get_default_dtype()
    return table[order].to(dtype), targets[order].to(dtype)


class Linear(nn.Linear):
    """A linear layer, torch's or by einsum."""

    how = None

    def forward(self, x):
        """The product."""
        if self.how.linear == "torch":
            return super().forward(x)
        told = torch.einsum("ri,oi->ro", x, self.weight)
        return told if self.bias is None else told + self.bias


class Act(nn.Module):
    """The hyperbolic tangent."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return torch.tanh(x) if self.how.act == "tanh" else 2 * torch.sigmoid(2 * x) - 1


class Norm(nn.BatchNorm1d):
    """A batch norm without weights, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_FEATURES, momentum=how.pace, affine=False)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        mean = x.mean(0)
        spread = (x - mean).square().mean(0)
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (len(x) / (len(x) - 1)), self.momentum)
        return (x - mean) / (spread + self.eps).sqrt()


class Kernel(nn.Module):
    """How alike the features of two rows are: a Matern kernel with a length for each feature."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.lengths = nn.Parameter(torch.full((_FEATURES,), 0.4))
        self.amplitude = nn.Parameter(torch.tensor(-0.2))

    def forward(self, one, other):
        """The kernel of each pair of rows (row, row)."""
        how, lengths = self.how, self.lengths.exp()
        if how.lengths == "divided":
            one, other = one / lengths, other / lengths
        else:
            one, other = one * lengths, other * lengths
        return (how.amplitude * self.amplitude).exp() * self._matern(self._squares(one, other))

    def _squares(self, one, other):
        """The square of how far apart rows are."""
        if self.how.distances == "differences":
            return (one[:, None] - other).square().sum(-1)
        if self.how.distances == "features":
            return sum((a[:, None] - b) ** 2 for a, b in zip(one.mT, other.mT, strict=True))
        lengths = one.square().sum(1)[:, None] + other.square().sum(1)
        return torch.addmm(lengths, one, other.mT, alpha=-2)

    def _matern(self, squares):
        far = (2 * self.how.smooth * squares.clamp(min=1e-10)).sqrt()
        if self.how.smooth == 1.5:
            return (1 + far) * torch.exp(-far)
        if self.how.matern == "plain":
            return (1 + far + far.square() / 3) * torch.exp(-far)
        return torch.exp(torch.log1p(far * (1 + far / 3)) - far)


class Noise(nn.Module):
    """What differs between rows that are alike."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.size = nn.Parameter(torch.tensor(-0.5))

    def forward(self, covariance):
        """The covariance with noise, in double precision or not."""
        covariance = covariance.double() if self.how.double else covariance
        one = torch.eye(len(covariance), dtype=covariance.dtype)
        added = (self.how.noise * self.size).exp() + self.how.jitter
        if self.how.spreads == "all":
            return covariance + added + self.how.jitter * one
        return covariance + added * one


class Process(nn.Module):
    """The covariance of rows by their features."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        last = Linear(_HIDDEN, _FEATURES, bias=False)  # a norm follows
        self.net = nn.Sequential(Linear(10, _HIDDEN), Act(how), last)
        for layer in (self.net[0], self.net[2]):
            layer.how = how
        self.norm, self.kernel, self.noise = Norm(how), Kernel(how), Noise(how)
        self.mean = nn.Parameter(torch.tensor(0.1))

    def forward(self, rows):
        """The covariance of rows, with noise."""
        found = self._features(rows)
        return self.noise(self.kernel(found, found))

    def between(self, rows, others):
        """The covariance of rows with other rows."""
        return self.kernel(self._features(rows), self._features(others))

    def _features(self, rows):
        if self.how.keeps == "all":
            found = self.net(rows)
        else:
            found = checkpoint(self.net, rows, use_reentrant=False)
        found = self.norm(found)
        return functional.dropout(found, 0.0) if self.how.drops else found


_KERNEL = ("kernel@value",)
_NOISE = ("noise@value", "output@value")
_COVARIANCE = ("output@grad", "noise@*grad", "kernel@*grad", "mean@*grad")
_FIT = ("fit_loss@*", "loss@*", *_COVARIANCE)
_VOLUME = ("volume_loss@*", "loss@*", *_COVARIANCE)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|exponent|B|L) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "rougher kernel",
        "bug",
        {"smooth": 1.5},
        _KERNEL,
        rf"\bMul|\bDiv|\bPow|\bAdd(Backward|\b)|\b[Ss]quare|{_GIVEN}",
    ),
    Case("multiplied by lengths", "bug", {"lengths": "multiplied"}, _KERNEL, r"\bMul|\bDiv"),
    Case(
        "amplitude not squared",
        "bug",
        {"amplitude": 1},
        _KERNEL,
        rf"\bMul|\b[Ee]xp(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "noise not squared",
        "bug",
        {"noise": 1},
        _NOISE,
        rf"\bMul|\b[Ee]xp(Backward|\b)|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "noise of all pairs",
        "bug",
        {"spreads": "all"},
        _NOISE,
        rf"\bMul|\beye\b|\bdiag|\bAdd(Backward|\b)|{_GIVEN}|broadcast|\bexpand|\bshapes?\b",
    ),
    Case(
        "jitter of 0.01",
        "bug",
        {"jitter": 1e-2},
        _NOISE,
        rf"\bAdd(Backward|\b)|\balpha\b|\bMul|0\.01|{_GIVEN}",
    ),
    Case(
        "running averages too fast",
        "bug",
        {"pace": 0.9},
        ("norm.running_*@*", "norm@value"),
        r"\bmomentum\b",
    ),
    Case("volume halved twice", "bug", {"volume": 0.5}, _VOLUME, rf"\bMul|\bDiv|{_TIMES}"),
    Case(
        "mean not subtracted",
        "bug",
        {"centres": False},
        (*_FIT, "mean@*grad"),
        rf"\b[RS]?[Ss]ub(Backward|\b)|{_GIVEN}|\bmean\b.{{0,80}}(gradient|None)",
    ),
    Case(
        "factor taken for an upper one",
        "bug",
        {"upper": True},
        _FIT,
        r"\bupper\b",
    ),
    Case(
        "solution detached",
        "bug",
        {"solved": "detached"},
        _COVARIANCE,
        rf"{_DETACHED}|[Cc]holesky_?[Ss]olve",
    ),
    Case(
        "predicted without the mean",
        "bug",
        {"returns": False},
        ("predicted@value",),
        r"\bAdd(Backward|\b)|\badd(_|\b)|\bmean\b|differs? by|constant|offset",
    ),
    Case(
        "gradients not cleared",
        "bug",
        {"clears": False},
        ("*@grad", "*@pass_grad"),
        r"zero_grad|\bclear|\bzeroed|accumulat|left over|(step|gradient)s? before|previous",
        step=1,
    ),
    Case("kernel decays", "bug", {"decays": True}, UPDATES, r"weight_decay"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("norm@value", "norm.running_*@*", "norm.num_batches_tracked@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=1,
    ),
    Case(
        "squares by a triangle",
        "benign",
        {"likelihood": "triangle"},
        reference={"double": False},
    ),
    Case(
        "likelihood by a general solver",
        "benign",
        {"likelihood": "inverse"},
        reference={"double": False},
    ),
    Case("likelihood half by half", "benign", {"likelihood": "blocks"}),
    Case("likelihood by torch", "benign", {"likelihood": "torch"}),
    Case("distances by a product", "benign", {"distances": "product"}),
    Case("distances feature by feature", "benign", {"distances": "features"}),
    Case("kernel by a logarithm", "benign", {"matern": "logarithm"}),
    Case("tanh by sigmoid", "benign", {"act": "sigmoid"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("rows turned", "benign", {"turned": True}),
    Case("linear by einsum", "benign", {"linear": "einsum"}),
    Case("other init", "data", {"init": 1}, ("net*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("net computed again", "equal", {"keeps": "edges"}),
    Case("dropout of nothing", "equal", {"drops": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("killed", "incomplete", {"killed_at": 4}),
]
