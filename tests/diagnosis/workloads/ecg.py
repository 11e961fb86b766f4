"""Signals of hearts, each with several labels: mixup, a focal loss, OneCycle, averaged weights."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

import anchorlib
from tests.diagnosis.workloads.base import Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.ecg_net import LABELS, LEADS, Heart, Norm

_POOL, _SHOWN = 80, 16
"""Signals that there are, and how many of them are not learnt from but evaluated."""
_LONG = 96
_CYCLE = 8
"""Steps of the whole schedule; training ends before it does."""
_RATES = (0.5, 0.3, 0.3, 0.4, 0.25)
"""How often a label is true: fast, wide, turned, without a first wave, raised."""


class Nesterov(torch.optim.Optimizer):
    """SGD with Nesterov's momentum, in two moves of each parameter."""

    def __init__(self, groups, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Move all parameters."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for one in group["params"]:
                grad = one.grad.add(one, alpha=group["weight_decay"])
                state = self.state[one]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(one)
                state["momentum_buffer"].mul_(momentum).add_(grad)
                one.add_(grad, alpha=-lr)
                one.sub_(state["momentum_buffer"] * (lr * momentum))


@dataclass(frozen=True)
class ECG(Workload):
    """Signals of two leads and different lengths; a net tells which of five labels are true.

    leads: whether a signal is normed for each lead "apart" or for all "together". ends: where its
        mask ends, "rightly" or "one late". squeezes: the frames that channels' means are of, the
        "signal" or "all". gate: of squeeze and excitation, "attached" or "detached". attends: what
        attention pooling is over, the "signal" or "all" frames.
    mixes: how mixup weighs targets, "alike" with the signals or "exchanged". smooth: how much of
        a target is smoothed. gamma: of the focal loss. hard: what makes a label hard, being "far"
        from its target or "unlikely". positives: the weight of a true label, as "rare" or as
        "often" as it is.
    pooled: whether the optimizer has the pooling's parameters. clears: whether gradients are
        forgotten after a step. all_decay: whether biases and norms decay too. averaged: the step
        from which weights are averaged.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    convolution, norming, pooling, keeps, loss, mixing, decay, nesterov: other ways to write the
        same mathematics.
    """

    lr: float = 0.4
    weight_decay: float = 1e-2
    leads: str = "apart"
    ends: str = "rightly"
    squeezes: str = "signal"
    gate: str = "attached"
    attends: str = "signal"
    mixes: str = "alike"
    smooth: float = 0.1
    gamma: float = 2.0
    hard: str = "far"
    positives: str = "rare"
    pooled: bool = True
    clears: bool = True
    all_decay: bool = False
    averaged: int = 3
    wakes: bool = True
    low: bool = False
    convolution: str = "torch"
    norming: str = "signals"
    pooling: str = "own"
    keeps: str = "all"
    loss: str = "torch"
    mixing: str = "targets"
    decay: str = "optimizer"
    nesterov: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            known = _signals(seed)
            shown = [one[:_SHOWN] for one in known]
            learnt = [one[_SHOWN:] for one in known]
            weights = self._weights(learnt[2])
            self.draw(seed)
            model = Heart(self)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, _CYCLE)
            session.watch(model, tensors="*", optimizer=optimizer)
            average = AveragedModel(model)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._batches(learnt, seed)):
                if self.clears:
                    clear(optimizer, self)
                self._learn(model, batch, weights)
                optimizer.step()
                schedule.step()
                if step >= self.averaged:
                    average.update_parameters(model)
                if step == 2:
                    self._evaluate(model, shown, weights, "eval_loss")
                if self.evaluates:
                    self._evaluate(copy.deepcopy(model), shown, weights)
            model.load_state_dict(average.module.state_dict())
            model.train()
            self._renew(model, learnt)
            self._evaluate(model, shown, weights, "average_loss")

    def _optimizer(self, model):
        """Convolutions and linear layers decay; biases and norms do not."""
        named = [
            one
            for name, one in model.named_parameters()
            if self.pooled or not name.startswith("pool.")
        ]
        still = self.weight_decay if self.all_decay else 0.0
        rates = {True: self.weight_decay, False: still}
        groups = [
            {
                "params": [one for one in named if (one.ndim > 1) is deep],
                "weight_decay": rate if self.decay == "optimizer" else 0.0,
            }
            for deep, rate in rates.items()
        ]
        if self.nesterov == "own":
            return Nesterov(groups, self.lr, 0.9, 0.0)
        return self.sgd(groups, nesterov=True)

    def _penalty(self, model):
        """Half the square of all that decays, where the optimizer does not let it decay."""
        deep = [one for one in model.parameters() if one.ndim > 1]
        return self.weight_decay / 2 * sum(one.square().sum() for one in deep)

    def _weights(self, labels):
        """The weight of a true label: how many are false for each that is true."""
        true = labels.sum(0).clamp(min=1)
        weights = (len(labels) - true) / true
        return weights if self.positives == "rare" else 1 / weights

    def _batches(self, learnt, seed):
        """A batch a step, with what it is mixed with, and how much of itself is kept."""
        dealing = torch.Generator().manual_seed(77 + 1000 * seed + self.order)
        mixing = np.random.default_rng(53 + 1000 * seed)
        for step in range(self.steps):
            chosen = torch.randint(0, len(learnt[0]), (self.batch,), generator=dealing)
            other = chosen[torch.from_numpy(mixing.permutation(self.batch))]
            kept = torch.from_numpy(mixing.beta(0.4, 0.4, (self.batch, 1)))
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            signals, lengths, labels = ((one[chosen], one[other]) for one in learnt)
            kept = kept.to(signals[0].dtype)
            mixed = kept[..., None] * signals[0] + (1 - kept[..., None]) * signals[1]
            yield mixed, torch.maximum(*lengths), labels, kept

    def _told(self, model, signals, lengths):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(signals, lengths)
        return logits.to(signals.dtype)

    def _learn(self, model, batch, weights):
        """The gradients of one batch."""
        signals, lengths, (labels, others), kept = batch
        logits = self._told(model, signals, lengths)
        kept = 1 - kept if self.mixes == "exchanged" else kept
        labels, others = (one * (1 - self.smooth) + self.smooth / 2 for one in (labels, others))
        if self.mixing == "targets":
            missed = self._missed(logits, kept * labels + (1 - kept) * others, weights)
        else:
            missed = kept * self._missed(logits, labels, weights)
            missed = missed + (1 - kept) * self._missed(logits, others, weights)
        loss = missed.mean()
        anchorlib.anchor(loss, "loss")
        if self.decay == "penalty":
            loss = loss + self._penalty(model)
        loss.backward()

    def _missed(self, logits, targets, weights):
        """The focal loss of each label, for targets between 0 and 1."""
        chance = logits.sigmoid()
        if self.loss == "torch":
            missed = functional.binary_cross_entropy_with_logits(
                logits, targets, pos_weight=weights, reduction="none"
            )
        else:
            missed = (1 - targets) * functional.softplus(logits)
            missed = missed + weights * targets * functional.softplus(-logits)
        if self.gamma == 0:
            return missed
        far = targets - chance if self.hard == "far" else 1 - chance
        return missed * far.abs().pow(self.gamma)

    @torch.no_grad()
    def _evaluate(self, model, shown, weights, name=""):
        """The loss of signals that are not learnt from."""
        signals, lengths, labels = shown
        model.eval()
        loss = self._missed(self._told(model, signals, lengths), labels, weights).mean()
        if name:
            anchorlib.anchor(loss, name)
        model.train(self.wakes)

    @torch.no_grad()
    def _renew(self, model, learnt):
        """The running statistics of norms, of all signals and for the averaged weights."""
        norms = [one for one in model.modules() if isinstance(one, Norm)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        for signals, lengths in zip(*(one.split(self.batch) for one in learnt[:2]), strict=True):
            self._told(model, signals, lengths)
        for norm in norms:
            norm.momentum = 0.1


def _signals(seed):
    """Signals (signal, lead, time) that are zero behind their lengths, and their labels."""
    source = torch.Generator().manual_seed(31 + 1000 * seed)
    labels = (torch.rand(_POOL, LABELS, generator=source) < torch.tensor(_RATES)).to(
        torch.get_default_dtype()
    )
    fast, wide, turned, bare, raised = labels[:, :, None].unbind(1)
    lengths = torch.randint(_LONG // 2, _LONG + 1, (_POOL,), generator=source)
    drawn = torch.rand(4, _POOL, 1, generator=source)
    times = torch.arange(_LONG)
    period = torch.where(fast > 0, 18.0, 30.0) + 4 * drawn[0]
    phase = (times / period + drawn[1]) % 1

    def wave(at, width):
        return torch.exp(-(((phase - at) / width) ** 2) / 2)

    first = 0.2 * (1 - bare) * wave(0.2, 0.04)
    beat = wave(0.42, 0.03 * (1 + wide)) - 0.3 * wave(0.48, 0.03 * (1 + wide))
    last = 0.35 * (1 - 2 * turned) * wave(0.75, 0.06) + 0.2 * raised * wave(0.6, 0.06)
    clean = torch.stack((first + beat + last, 0.6 * first - 0.4 * beat + 1.5 * last), 1)
    drift = 0.2 * torch.sin(times / 15 + 6 * drawn[2])[:, None]
    noise = 0.05 * torch.randn(_POOL, LEADS, _LONG, generator=source)
    signals = (clean + drift + noise) * (0.5 + drawn[3, :, :, None])
    return signals * (times < lengths[:, None])[:, None], lengths, labels


_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|pos_weight|mask) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_MASKED = rf"mask|\bMul|\bDiv|\bWhere|\bMean|\bSum|{_GIVEN}"
"""Words that name a mask, or what is computed with it."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "leads normed together",
        "bug",
        {"leads": "together"},
        ("standard@value",),
        rf"\bdim\b|ax[ei]s|\bMean|\bSum|{_TIMES}|a factor of its own|{_GIVEN}",
    ),
    Case(
        "mask ends one late",
        "bug",
        {"ends": "one late"},
        ("standard@value", "norm@value"),
        _MASKED,
    ),
    Case(
        "padding counts in squeezes",
        "bug",
        {"squeezes": "all"},
        ("blocks.0.squeeze@value", "blocks.0.squeeze.down@value"),
        rf"{_MASKED}|{_TIMES}",
    ),
    Case(
        "gates detached",
        "bug",
        {"gate": "detached"},
        (
            "blocks.*.squeeze.*@grad",
            "blocks.*.squeeze.*@pass_grad",
            "blocks.*.norm2@grad",
            "blocks.*.norm2.*@*grad",
        ),
        rf"{_DETACHED}|(Mul|Sigmoid|addmm)\w* .{{0,60}}(lacks|alone)"
        r"|(lacks|alone).{0,60}(Mul|Sigmoid|addmm)",
    ),
    Case(
        "attention to padding",
        "bug",
        {"attends": "all"},
        ("pool@value",),
        rf"mask|\bWhere|{_GIVEN}",
    ),
    Case(
        "targets mixed the other way",
        "bug",
        {"mixes": "exchanged"},
        _LOSS,
        rf"{_GIVEN}|\bR?sub|\btargets?\b",
    ),
    Case(
        "hard where unlikely",
        "bug",
        {"hard": "unlikely"},
        _LOSS,
        rf"\bR?sub|\bPow|\bAbs|{_GIVEN}",
    ),
    Case(
        "weights as often as true",
        "bug",
        {"positives": "often"},
        _LOSS,
        rf"pos_weight|{_GIVEN}|BinaryCrossEntropy\w* .{{0,60}}weight",
    ),
    Case(
        "pooling not in the optimizer",
        "bug",
        {"pooled": False},
        (
            *("pool.*@updated", "pool.*@delta", "pool.*@opt.*", "pool.*@grad"),
            *("pool.*weight@value", "pool.*bias@value"),
        ),
        r"optimizer|not (updated|moved|changed)|\bfrozen|unchanged"
        r"|(A|B) alone|only (in )?(A|B)\b|lacks",
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|\bzeroed|forg[eo]t|clear|earlier step|step before|previous step"
        r"|left over",
        1,
    ),
    Case(
        "averaged from the start",
        "bug",
        {"averaged": 0},
        ("*weight@value", "*bias@value"),
        r"averag|overwrit|outside|assigned|replaced|loaded|copied|in place"
        r"|(not|nor) .{0,60}(update|optimizer)",
        6,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("norm@value", "norm.running*@value", "norm.num_batches_tracked@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        3,
    ),
    Case("focal loss by softplus", "benign", {"loss": "softplus"}),
    Case("convolutions as sums over taps", "benign", {"convolution": "taps"}),
    Case("norms of frames in one row", "benign", {"norming": "frames"}),
    Case("pooling signal by signal", "benign", {"pooling": "each"}),
    Case("losses mixed for targets", "benign", {"mixing": "losses"}, reference={"gamma": 0.0}),
    Case("decay as a penalty", "benign", {"decay": "penalty"}),
    Case("own Nesterov", "benign", {"nesterov": "own"}),
    Case(
        "pooling by torch, low precision", "benign", {"pooling": "torch"}, reference={"low": True}
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("copies evaluated", "equal", {"evaluates": True}),
    Case("pooling computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
)
