"""A variational autoencoder of digits: noise drawn inside the model, a weight that is warmed up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear

_HIDDEN, _CODE = 48, 8


@dataclass(frozen=True)
class Coder(Workload):
    """half: whether a variance's root is taken of half the logarithm. weight: of the divergence.

    warm: steps until that weight is full. over: what the divergence is a "sum" or "mean" of.
    free: the divergence of a dimension that costs nothing. draws: whether codes are drawn.
    twice: whether the decoder's sigmoid is taken twice. stays: whether the code's mean learns by
    the reconstruction. shrinks: an L1 penalty of the code, by its own sum or torch's.
    """

    lr: float = 5e-3
    weight_decay: float = 0.0
    half: bool = True
    weight: float = 0.2
    warm: int = 3
    over: str = "sum"
    free: float = 0.0
    draws: bool = True
    twice: bool = False
    stays: bool = False
    capped: float = 5.0
    gain: float = 1.0
    beta: float = 1.0
    flips: bool = False
    amsgrad: bool = False
    maximize: bool = False
    skips: int = -1
    stale: bool = False
    written: str = "torch"
    clip: float = 1.0
    clips: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = torch.optim.Adam(
                model.parameters(), lr=self.lr, betas=self.betas, eps=self.adam_eps,
                amsgrad=self.amsgrad, foreach=self.implementation == "foreach",
            )  # fmt: skip
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            before = None
            for step, (dealt, _) in enumerate(self.images(seed)):
                flat = (dealt.flatten(1) + 1) / 2
                images = flat.flip(1) if self.flips and step > 2 else flat
                target = before if self.stale and before is not None else images
                before = images
                clear(optimizer, self)
                made, mean, spread = model(images)
                loss = self._loss(made, target, mean, spread, step)
                anchorlib.anchor(loss, "loss")
                loss.backward()
                if self.clips == "all":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                else:
                    for one in model.parameters():
                        nn.utils.clip_grad_norm_([one], self.clip)
                if step != self.skips:
                    optimizer.step()

    def _loss(self, made, target, mean, spread, step):
        made = torch.sigmoid(made) if self.twice else made
        if self.written == "own":
            told = functional.softplus(made) - made * target
        else:
            told = functional.binary_cross_entropy_with_logits(made, target, reduction="none")
        apart = 0.5 * (mean.square() + spread.exp() - 1 - spread)
        apart = apart.clamp(min=self.free) if self.free else apart
        apart = apart.sum(1).mean() if self.over == "sum" else apart.mean()
        weight = self.weight * min((step + 1) / self.warm, 1)
        return told.sum(1).mean() / 64 + weight * apart


class Net(nn.Module):
    """Encoder, a drawn code, decoder."""

    def __init__(self, how: Coder) -> None:
        super().__init__()
        self.how = how
        self.enter, self.act = nn.Linear(64, _HIDDEN), nn.SiLU()
        self.norm = nn.BatchNorm1d(_HIDDEN)
        self.mean, self.spread = nn.Linear(_HIDDEN, _CODE), nn.Linear(_HIDDEN, _CODE)
        self.leave, self.soft = nn.Linear(_CODE, _HIDDEN), nn.Softplus(beta=how.beta)
        self.out = nn.Linear(_HIDDEN, 64)
        nn.init.xavier_uniform_(self.out.weight, gain=how.gain)

    def forward(self, x):
        """What is made again, and the mean and logarithm of the variance of the code."""
        how = self.how
        h = self.norm(self.act(self.enter(x)))
        mean, spread = self.mean(h), self.spread(h).clamp(-how.capped, how.capped)
        code = mean.detach() if how.stays else mean
        if how.draws:
            code = code + torch.randn_like(mean) * (spread * (0.5 if how.half else 1.0)).exp()
        code = anchorlib.anchor(code, "code")
        return self.out(self.soft(self.leave(code))), mean, spread


_LOSS = ("loss@value", "output*@grad", "out@grad", "mean@grad", "spread@grad")
CASES = [
    Case(
        "variance for its root", "bug", {"half": False}, ("code@value",), r"Mul|is [\d.]+ times A"
    ),
    Case(
        "weight of the divergence",
        "bug",
        {"weight": 0.4},
        _LOSS,
        r"0\.0[67]\d* \| 0\.1|is 2 times A|Mul",
    ),
    Case("never warmed up", "bug", {"warm": 1}, _LOSS, r"0\.0[67]\d* \| 0\.2|Mul"),
    Case("warmed up for longer", "bug", {"warm": 6}, _LOSS, r"Mul"),
    Case("mean for the sum", "bug", {"over": "mean"}, _LOSS, r"Mean|Sum"),
    Case("free bits", "bug", {"free": 0.05}, _LOSS, r"Clamp"),
    Case(
        "code not drawn",
        "bug",
        {"draws": False},
        ("code@value",),
        r"random|Add|Exp|same tensor|mean",
    ),
    Case("sigmoid twice", "bug", {"twice": True}, (*_LOSS, "output@grad"), r"Sigmoid"),
    Case(
        "mean detached",
        "bug",
        {"stays": True},
        ("mean@grad", "output:1@grad"),
        r"detach|Add|mean|code",
    ),
    Case(
        "logarithm capped",
        "bug",
        {"capped": 0.1},
        ("code@value", "output:2@value", "loss@value"),
        r"Clamp",
    ),
    Case("softplus beta", "bug", {"beta": 2.0}, ("soft@value",), r"beta"),
    Case("amsgrad", "bug", {"amsgrad": True}, UPDATES, r"amsgrad"),
    Case(
        "a step left out",
        "bug",
        {"skips": 2},
        ("*@grad", "*@updated", "*@delta"),
        r"did not step|no step",
    ),
    Case("target of the step before", "bug", {"stale": True}, (*_LOSS,), r"target|loss", step=1),
    Case(
        "clipped one by one",
        "bug",
        {"clips": "each", "clip": 0.05},
        ("*@grad",),
        r"clip|is [\d.]+ times A",
        reference={"clip": 0.05},
    ),
    Case("betas", "bug", {"betas": (0.5, 0.999)}, UPDATES, r"beta"),
    Case("images turned from step 3", "data", {"flips": True}, ("input*@value",), step=3),
    Case("other gain", "data", {"gain": 0.5}, ("out.weight@value",)),
    Case("own loss", "benign", {"written": "own"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("batch turned", "benign", {"turned": True}, reference={"draws": False}),
    Case("again", "equal"),
    Case("again, codes not drawn", "equal", reference={"draws": False}),
]
