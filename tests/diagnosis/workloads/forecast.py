"""A forecast of a digit's lower pixels by its upper ones: causal convolutions, quantiles, SGD."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_SEEN, _AHEAD, _CHANNELS, _WIDE = 48, 16, 16, 3
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Forecast(Workload):
    """A series is an image's pixels in their order, and dark ones are missing values.

    A series is normed by its own mean and spread, scaled and shifted by learnt numbers, and what is
    foretold goes the same way back.

    spread_eps, correction, axes: of that norm. undoes: what the way back undoes, "all", "norm" or
        "nothing".
    pads: the side of a convolution's padding, "left", "both" or "right". grows: the factor of the
        dilation from block to block. adds: whether a block adds what it was given, and whether
        "before" its last activation or "behind". drops: "channels" or "elements".
    reads: the place that the head reads. frozen: the weight norms' part that is not trained.
    late: by how many places targets stand too early. missed: what is told from what, "target" from
        "forecast" or the other way round. counts: the "observed" values, those or "all" of them.
        over: what the loss is a mean of, "observed" values or "all" places.
    decay: of the weights' average; averages: "behind" the step or "before". rests: whether the
        average is in eval mode.
    nesterov, dampening: of SGD. rises: the share of steps in which the rate rises. cycles: whether
        the momentum falls meanwhile. moves: whether the schedule moves "behind" the step or
        "before" it.
    taps, pinball, norm, weights, back, average, mean, checkpoints: how it is written, of
        one mathematics.
    """

    steps: int = 4
    lr: float = 5e-2
    weight_decay: float = 1e-3
    spread_eps: float = 1e-5
    correction: int = 0
    axes: tuple[int, ...] = (-1,)
    undoes: str = "all"
    pads: str = "left"
    grows: int = 2
    adds: str = "before"
    dropout: float = 0.0
    drops: str = "channels"
    reads: int = -1
    frozen: str = ""
    late: int = 0
    missed: str = "forecast"
    counts: str = "observed"
    over: str = "observed"
    decay: float = 0.9
    averages: str = "behind"
    rests: bool = True
    nesterov: bool = True
    dampening: float = 0.0
    rises: float = 0.3
    cycles: bool = True
    moves: str = "behind"
    parts: int = 1
    taps: bool = False
    pinball: str = "most"
    norm: str = "own"
    weights: str = "torch"
    back: str = "plain"
    average: str = "lerp"
    mean: str = "sum"
    checkpoints: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            average = AveragedModel(model, avg_fn=self._averaged)
            average.train(not self.rests)
            trained = [one for one in model.parameters() if one.requires_grad]
            optimizer = self.sgd(
                trained,
                nesterov=self.nesterov,
                dampening=self.dampening,
                fused=self.implementation == "fused",
            )
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, self.lr, 12, pct_start=self.rises, cycle_momentum=self.cycles
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average.module, tensors="*@value", prefix="average")
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                series = images.flatten(1)
                ends = _SEEN - self.late
                seen, ahead = series[:, None, :_SEEN], series[:, ends : ends + _AHEAD]
                clear(optimizer, self)
                count = (ahead > -1).sum()
                for one, other in cut(self.parts, seen, ahead):
                    loss = self._loss(model(one), other, count)
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                self._move(model, average, optimizer, schedule)
                with torch.no_grad():
                    average(seen)

    def _move(self, model, average, optimizer, schedule):
        if self.averages == "before":
            average.update_parameters(model)
        if self.moves == "before":
            schedule.step()
        optimizer.step()
        if self.moves == "behind":
            schedule.step()
        if self.averages == "behind":
            average.update_parameters(model)

    def _averaged(self, kept, new, _count):
        if self.average == "lerp":
            return torch.lerp(new, kept, self.decay)
        return self.decay * kept + (1 - self.decay) * new

    def _loss(self, told, ahead, count):
        """The mean of what each quantile of each observed value costs."""
        target = ahead[..., None]
        missed = target - told if self.missed == "forecast" else told - target
        quantiles = torch.tensor(_QUANTILES)
        if self.pinball == "most":
            costs = torch.maximum(quantiles * missed, (quantiles - 1) * missed)
        else:
            costs = missed.abs() / 2 + (quantiles - 0.5) * missed
        observed = ahead > -1
        if self.mean == "chosen":
            return costs[observed].mean()
        costs = costs.mean(-1)
        costs = costs * observed if self.counts == "observed" else costs
        return costs.mean() if self.over == "all" else costs.sum() / count


class Reversible(nn.Module):
    """A norm of each series, and the way back."""

    def __init__(self, how: Forecast) -> None:
        super().__init__()
        self.how = how
        self.scale, self.shift = nn.Parameter(torch.tensor(1.2)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        """x, normed, with its mean and spread."""
        how = self.how
        mean = x.mean(how.axes, keepdim=True)
        spread = x.var(how.axes, correction=how.correction, keepdim=True)
        spread = (spread + how.spread_eps).sqrt()
        if how.norm == "torch":
            x = functional.instance_norm(x, eps=how.spread_eps)
        else:
            x = (x - mean) / spread
        return x * self.scale + self.shift, mean, spread

    def back(self, told, mean, spread):
        """What is foretold, of (series, place, quantile), as the series were."""
        how = self.how
        if how.undoes == "nothing":
            return told
        if how.undoes == "all":
            told = (told - self.shift) / self.scale
        if how.back == "at once":
            return torch.addcmul(mean, told, spread)
        return told * spread + mean


class Conv(nn.Conv1d):
    """A convolution that sees what was, and not what will be."""

    how: Forecast

    def forward(self, x):
        """The convolution."""
        how = self.how
        wide = (_WIDE - 1) * self.dilation[0]
        sides = {"left": (wide, 0), "both": (wide // 2, wide // 2), "right": (0, wide)}
        x = functional.pad(x, sides[how.pads])
        if not how.taps:
            return super().forward(x)
        long, step = x.shape[-1] - wide, self.dilation[0]
        weight = self.weight
        taps = [weight[..., at] @ x[..., at * step : at * step + long] for at in range(_WIDE)]
        return sum(taps[1:], taps[0]) + self.bias[:, None]


class WeightNorm(nn.Module):
    """A weight as its length and its direction, by hand."""

    def forward(self, length, direction):
        """The weight."""
        return direction * (length / direction.square().sum((1, 2), keepdim=True).sqrt())

    def right_inverse(self, weight):
        """Its length and direction."""
        return torch.norm_except_dim(weight, 2, 0), weight


def conv(how: Forecast, before: int, dilation: int) -> nn.Module:
    """A convolution with a norm of its weight."""
    made = Conv(before, _CHANNELS, _WIDE, dilation=dilation)
    made.how = how
    if how.weights == "torch":
        weight_norm(made)
    else:
        parametrize.register_parametrization(made, "weight", WeightNorm())
    if how.frozen == "length":
        made.parametrizations.weight.original0.requires_grad_(False)
    return made


class Block(nn.Module):
    """Two convolutions, and what was given added."""

    def __init__(self, how: Forecast, before: int, dilation: int) -> None:
        super().__init__()
        self.how = how
        self.conv1, self.conv2 = conv(how, before, dilation), conv(how, _CHANNELS, dilation)
        self.act1, self.act2, self.act3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        kind = nn.Dropout1d if how.drops == "channels" else nn.Dropout
        self.drop1, self.drop2 = kind(how.dropout), kind(how.dropout)
        self.beside = nn.Conv1d(before, _CHANNELS, 1) if before != _CHANNELS else nn.Identity()

    def forward(self, x):
        """One level."""
        h = self.drop1(self.act1(self.conv1(x)))
        h = self.drop2(self.act2(self.conv2(h)))
        if self.how.adds == "nothing":
            return self.act3(h)
        beside = self.beside(x)
        return self.act3(h + beside) if self.how.adds == "before" else self.act3(h) + beside


class Net(nn.Module):
    """A norm, three blocks, a head, and the way back."""

    def __init__(self, how: Forecast) -> None:
        super().__init__()
        self.how = how
        self.norm = Reversible(how)
        self.blocks = nn.ModuleList(
            Block(how, 1 if at == 0 else _CHANNELS, how.grows**at) for at in range(3)
        )
        self.head = nn.Linear(_CHANNELS, _AHEAD * len(_QUANTILES))

    def forward(self, seen):
        """Quantiles of each place ahead."""
        x, mean, spread = self.norm(seen)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.how.checkpoints else block(x)
        told = self.head(x[..., self.how.reads]).unflatten(1, (_AHEAD, len(_QUANTILES)))
        return self.norm.back(told, mean, spread)


_NORM = ("norm@value",)
_CONV = ("blocks.0.conv1@value",)
_LOSS = ("loss@*", "output@grad")
_AVERAGE = ("average.*@value",)
_TIMES = r"is -?[\d.]+ times A"
CASES = [
    Case(
        "eps of the norm",
        "bug",
        {"spread_eps": 1e-2},
        _NORM,
        r"\beps\b|\b0\.01\b|1e-0?2|\bAdd(Backward|\b)",
    ),
    Case(
        "unbiased spread",
        "bug",
        {"correction": 1},
        (*_NORM, "norm:2@value"),
        rf"correction|unbiased|{_TIMES}",
    ),
    Case(
        "normed over the batch too",
        "bug",
        {"axes": (0, -1)},
        (*_NORM, "norm:1@value", "norm:2@value"),
        r"\bdim\b|\baxis\b|\b[Mm]ean(Backward|\b)|\b[Vv]ar|shape",
    ),
    Case(
        "scale and shift not undone",
        "bug",
        {"undoes": "norm"},
        ("output@value",),
        r"\bDiv|\bdiv\b|\bSub|\bsub\b",
    ),
    Case(
        "forecast not scaled back",
        "bug",
        {"undoes": "nothing"},
        ("output@value",),
        r"\bDiv|\bdiv\b|\bSub|\bsub\b|\bMul|\bmul\b|\bAdd(Backward|\b)|\badd\b",
    ),
    Case("future seen", "bug", {"pads": "both"}, _CONV, r"[Pp]ad|shift|moved by|places?\b"),
    Case(
        "padded at the end",
        "bug",
        {"pads": "right"},
        _CONV,
        r"[Pp]ad|shift|moved by|places?\b",
    ),
    Case(
        "dilation does not grow",
        "bug",
        {"grows": 1},
        ("blocks.1.conv1@value",),
        r"dilation|[Pp]ad",
    ),
    Case(
        "nothing added",
        "bug",
        {"adds": "nothing"},
        ("blocks.0.act3@value", "blocks.0@value", "blocks.0.beside*@value"),
        r"\bAdd(Backward|\b)|\badd\b|beside",
    ),
    Case(
        "added behind the activation",
        "bug",
        {"adds": "behind"},
        ("blocks.0.act3@value", "blocks.0@value"),
        r"\bAdd(Backward|\b)|\badd\b|act3|[Rr]e[Ll][Uu]",
    ),
    Case(
        "elements dropped",
        "bug",
        {"drops": "elements"},
        ("blocks.0.drop1@value",),
        r"[Dd]ropout1d|[Ff]eature|Dropout\b|whole channels|channels?\b",
        reference={"dropout": 0.2},
    ),
    Case(
        "last place but one",
        "bug",
        {"reads": -2},
        ("head@value",),
        r"[Ss]elect|\bindex\b|(?<![\de])-2\b|\b46\b|places?\b|rows?\b",
    ),
    Case(
        "lengths of weights frozen",
        "bug",
        {"frozen": "length"},
        ("*original0@*",),
        r"requires_grad|frozen|froze|original0.{0,80}(only|alone)|(only|alone).{0,80}original0",
    ),
    Case(
        "targets a place early",
        "bug",
        {"late": 1},
        _LOSS,
        r"targets?\b|shift|SubBackward\d.{0,40}(self|other)",
    ),
    Case(
        "target from forecast",
        "bug",
        {"missed": "target"},
        _LOSS,
        r"\bSub|\bsub\b|\bNeg|\bneg\b|\bsigns?\b|is -1(\.0)? times A|exchang|swap|operands",
    ),
    Case(
        "missing values counted",
        "bug",
        {"counts": "all"},
        _LOSS,
        r"\bMul|\bmul\b|\bmask\b|observed|MaskedFill|[Ww]here",
    ),
    Case(
        "mean of all places",
        "bug",
        {"over": "all"},
        _LOSS,
        rf"\b[Mm]ean(Backward|\b)|\bDiv|\bSum|{_TIMES}",
    ),
    Case(
        "average's decay",
        "bug",
        {"decay": 0.99},
        _AVERAGE,
        rf"{_TIMES}|lerp|\b0\.99\b|moves? 0?\.\d+",
    ),
    Case(
        "averaged before the step",
        "bug",
        {"averages": "before"},
        _AVERAGE,
        r"\bmove|\bcop(y|ied) (is|of|from)|unchanged|\bstay|lerp|a step (early|earlier|late|later)",
    ),
    Case(
        "average drops",
        "bug",
        {"rests": False},
        _AVERAGE,
        r"eval mode|train(ing)? mode|training",
        reference={"dropout": 0.2},
    ),
    Case("no nesterov", "bug", {"nesterov": False}, UPDATES, r"nesterov"),
    Case(
        "dampening",
        "bug",
        {"dampening": 0.9},
        UPDATES,
        r"dampening",
        reference={"nesterov": False},
    ),
    Case("rate rises longer", "bug", {"rises": 0.5}, UPDATES, r"\blr\b"),
    Case("momentum does not fall", "bug", {"cycles": False}, UPDATES, r"momentum"),
    Case("schedule before the step", "bug", {"moves": "before"}, UPDATES, r"\blr\b"),
    Case("convolution tap by tap", "benign", {"taps": True}),
    Case("pinball by absolute values", "benign", {"pinball": "absolute"}),
    Case("norm by torch", "benign", {"norm": "torch"}),
    Case("own weight norm", "benign", {"weights": "own"}),
    Case("back at once", "benign", {"back": "at once"}),
    Case("average as a sum", "benign", {"average": "sum"}),
    Case("mean of the chosen", "benign", {"mean": "chosen"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("batch turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("again, with dropout", "equal", reference={"dropout": 0.2}),
    Case("blocks checkpointed", "equal", {"checkpoints": True}, reference={"dropout": 0.2}),
    Case("died", "incomplete", {"ends_at": 3}),
]
