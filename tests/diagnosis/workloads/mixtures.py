"""A mixture of poses for each point that the tip of an arm should reach, as a density."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import distributions, nn

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    warmed,
)
from tests.diagnosis.workloads.mixtures_net import LENGTHS, LIMITS, Mixture, tips

_POSES = 256
"""How many poses were measured."""


@dataclass(frozen=True)
class Mixtures(Workload):
    """Drawn poses and their measured tips; the net tells poses of a tip, and is shown a path.

    rests: whether running statistics stay as they are in evaluations. clamps: whether the
        logarithms of standard deviations are clamped.
    normed: whether logits become logarithms of weights. over: what densities are added over, the
        "components" or the "samples". spread: what the head's logarithms are of, "std" or "var".
    bonus, horizon: the weight of the entropy, and the step at which it is gone; 0: it stays.
    chained: whether angles of joints add up along the arm.
    reaches: the weight of the loss of tips. evens: the exponent of a tip's variance that its loss
        is weighed by. weighed: whether this weight is "detached" or "attached".
    alpha, momentum: of RMSprop. warmup: steps of rising rate. clip: of gradients.
    density, entropy, arm, heads, moments, keeps: other ways to write the same mathematics.
    """

    batch: int = 32
    lr: float = 1e-3
    weight_decay: float = 1e-4
    rests: bool = True
    clamps: bool = True
    normed: bool = True
    over: str = "components"
    spread: str = "std"
    bonus: float = 0.3
    horizon: int = 8
    chained: bool = True
    reaches: float = 0.5
    evens: float = 0.5
    weighed: str = "detached"
    alpha: float = 0.99
    momentum: float = 0.9
    warmup: int = 2
    clip: float = 5.0
    density: str = "at once"
    entropy: str = "plain"
    arm: str = "angles"
    heads: str = "apart"
    moments: str = "merged"
    keeps: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Mixture(self)
            optimizer = torch.optim.RMSprop(
                self._groups(model),
                lr=self.lr,
                alpha=self.alpha,
                momentum=self.momentum,
                foreach=self.implementation == "foreach",
            )
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 12)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (points, joints) in enumerate(self._batches(seed)):
                if step and step % 2 == 0:
                    self._evaluate(model)
                clear(optimizer, self)
                self._loss(model(points), points, joints, step).backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: biases and norms."""
        every = list(model.parameters())
        return [
            {
                "params": [one for one in every if (one.ndim > 1) is deep],
                "weight_decay": self.weight_decay if deep else 0.0,
            }
            for deep in (True, False)
        ]

    def _batches(self, seed):
        """Measured tips and the poses that they were measured at, step by step."""
        points, joints = _measured()
        dealing = torch.Generator().manual_seed(29 + 1000 * seed + self.order)
        dealt = torch.randperm(_POSES, generator=dealing).split(self.batch)
        for step, dealt_now in enumerate(dealt[: self.steps]):
            chosen = dealt_now.flip(0) if self.turned else dealt_now
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield points[chosen], joints[chosen]

    @torch.no_grad()
    def _evaluate(self, model):
        """How far from a straight path the likeliest poses are."""
        model.eval()
        path = torch.stack((torch.linspace(-1.0, 5.0, 16), torch.full((16,), 1.5)), 1)
        logits, means, *_ = model(path)
        likeliest = means[torch.arange(len(path)), logits.argmax(1)]
        missed = (tips(self, likeliest) - path).norm(dim=1)
        anchorlib.anchor(missed.mean(), "eval_error")
        model.train()

    def _loss(self, told, points, joints, step):
        """Likelihood of the poses, tips that are reached, and weights that stay spread at first."""
        logits, means, log_stds, log_vars = told
        log_prob = anchorlib.anchor(self._log_prob(logits, means, log_stds, joints), "log_prob")
        bonus = anchorlib.anchor(-self._fading(step) * self._entropy(logits).mean(), "bonus")
        reached = anchorlib.anchor(tips(self, means), "tips")
        missed = self._missed(reached - points[:, None], log_vars)
        missed = (logits.softmax(1).detach() * missed).sum(1).mean()
        missed = anchorlib.anchor(self.reaches * missed, "tip_loss")
        return anchorlib.anchor(-log_prob.mean() + missed + bonus, "loss")

    def _fading(self, step):
        """The weight of the entropy."""
        return self.bonus * (max(0.0, 1 - step / self.horizon) if self.horizon else 1.0)

    def _entropy(self, logits):
        """Of the mixing weights."""
        if self.entropy == "plain":
            logs = logits.log_softmax(1)
            return -(logs.exp() * logs).sum(1)
        return logits.logsumexp(1) - (logits.softmax(1) * logits).sum(1)

    def _log_prob(self, logits, means, log_stds, joints):
        """The logarithm of each pose's density."""
        if self.density == "torch":
            parts = distributions.Independent(distributions.Normal(means, log_stds.exp()), 1)
            weights = distributions.Categorical(logits=logits)
            return distributions.MixtureSameFamily(weights, parts).log_prob(joints)
        logs = logits.log_softmax(1) if self.normed else logits
        if self.density == "each":
            found = logs.new_full((len(logs),), -math.inf)
            parts = zip(means.unbind(1), log_stds.unbind(1), logs.unbind(1), strict=True)
            for mean, log_std, log in parts:
                found = torch.logaddexp(found, log + self._gauss(joints, mean, log_std))
            return found
        if self.density == "expanded":
            logs = logs + self._expanded(joints, means, log_stds)
        else:
            logs = logs + self._gauss(joints[:, None], means, log_stds)
        return logs.logsumexp(1 if self.over == "components" else 0)

    def _gauss(self, joints, means, log_stds):
        """The logarithm of the density of joints that do not depend on each other."""
        stds = log_stds.exp() if self.spread == "std" else (0.5 * log_stds).exp()
        off = (joints - means) / stds
        return (-0.5 * off.square() - log_stds - 0.5 * math.log(2 * math.pi)).sum(-1)

    def _expanded(self, joints, means, log_stds):
        """The same by products, so that no differences of all pairs are kept."""
        precisions = (-2 * log_stds).exp()
        squares = torch.einsum("nj,nkj->nk", joints.square(), precisions)
        crossed = torch.einsum("nj,nkj->nk", joints, means * precisions)
        off = squares - 2 * crossed + (means.square() * precisions).sum(-1)
        return -0.5 * (off + len(LENGTHS) * math.log(2 * math.pi)) - log_stds.sum(-1)

    def _missed(self, off, log_vars):
        """The negative likelihood of the tips' errors, weighed so that sure ones do not rule."""
        missed = 0.5 * off.square().sum(-1) * (-log_vars).exp() + log_vars
        weights = (self.evens * log_vars).exp()
        return missed * (weights.detach() if self.weighed == "detached" else weights)


def _measured():
    """Tips that were measured, with a sensor's noise, at drawn poses."""
    drawing = torch.Generator().manual_seed(11)
    low, high = torch.tensor(LIMITS).T
    joints = low + (high - low) * torch.rand(_POSES, len(LENGTHS), generator=drawing)
    angles, lengths = joints.cumsum(1), torch.tensor(LENGTHS)
    points = torch.stack((angles.cos() @ lengths, angles.sin() @ lengths), 1)
    return points + 0.03 * torch.randn(_POSES, 2, generator=drawing), joints


_LIKELY = ("log_prob@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "statistics also of evaluations",
        "bug",
        {"rests": False},
        ("normalizer*@value",),
        r"normalizer\.(mean|var|count)|running|buffer|eval mode|train(ing)? mode|evaluation",
    ),
    Case(
        "log stds not clamped",
        "bug",
        {"clamps": False},
        ("head:2@value", "output:2@value"),
        r"\bclamp|\bhardtanh",
    ),
    Case(
        "logits taken for log weights",
        "bug",
        {"normed": False},
        _LIKELY,
        r"log_?softmax",
    ),
    Case(
        "densities added over samples",
        "bug",
        {"over": "samples"},
        _LIKELY,
        r"\bdim\b|\baxis\b|\bshapes?\b|\bsizes?\b|\[32\]|\(32,\)",
    ),
    Case(
        "log stds taken for log variances",
        "bug",
        {"spread": "var"},
        _LIKELY,
        rf"\bMul(Backward|\b)|\b[Ee]xp(Backward|\b)|\bsqrt|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "entropy bonus does not fade",
        "bug",
        {"horizon": 0},
        ("bonus@*",),
        rf"\bMul(Backward|\b)|{_TIMES}|{_GIVEN}",
        step=1,
    ),
    Case(
        "angles of joints not added up",
        "bug",
        {"chained": False},
        ("tips@value",),
        r"\bcum_?sum",
    ),
    Case(
        "weights by variance attached",
        "bug",
        {"weighed": "attached"},
        ("output:3@grad", "head:3@grad", "head.log_vars@grad", "head.log_vars.*@*grad"),
        rf"{_DETACHED}|\b(Mul|Exp)\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\b(Mul|Exp)",
    ),
    Case("alpha of another library", "bug", {"alpha": 0.9}, UPDATES, r"\balpha\b"),
    Case("mixture by torch.distributions", "benign", {"density": "torch"}),
    Case("components one by one", "benign", {"density": "each"}),
    Case("squares expanded into products", "benign", {"density": "expanded"}),
    Case("entropy by logsumexp", "benign", {"entropy": "logsumexp"}),
    Case("arm by rotation matrices", "benign", {"arm": "matrices"}),
    Case("one layer for four heads", "benign", {"heads": "joined"}),
    Case("statistics by second moments", "benign", {"moments": "second"}),
    Case("samples turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
