"""Gaps in time series of several sensors, filled by a recurrent net that runs both ways."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
)
from tests.diagnosis.workloads.imputer_net import Both

_FEATURES, _MOMENTS = 5, 10
_LEARNT, _SHOWN = 40, 12
"""Series that are learnt from, and those that the evaluation sees."""
_EPOCH = 2
"""Steps between evaluations."""


@dataclass(frozen=True)
class Imputer(Workload):
    """Series are waves that sensors see at uneven times, with runs of gaps.

    seen: whether a gap goes on by what was seen the moment "before" or "now". turns_gaps: whether
        the way back has gaps of its own. fades: whether the hidden state fades "first" or "after"
        the moment is told by it. masks_itself: whether no feature tells itself. keeps: whether
        filled values are "attached" or "detached". returns: whether the way back returns its
        filled values in the order of time. dropout: of the hidden state.
    over: the entries whose errors count, those that were "seen" or "all".
    consistency: the weight of the loss of the two directions.
    wakes: whether the model is in training mode again after an evaluation.
    falls: the factor of the learning rate. schedules: whether it changes each "epoch" or "step".
    clip: of gradients, by their norm. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    fading, regression, filling, mixing, cell, reads, gaps: other ways to write the same
        mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.0
    decoupled: bool = False
    seen: str = "before"
    turns_gaps: bool = True
    fades: str = "first"
    masks_itself: bool = True
    keeps: str = "attached"
    returns: bool = True
    dropout: float = 0.1
    over: str = "seen"
    consistency: float = 0.1
    wakes: bool = True
    falls: float = 0.7
    schedules: str = "epoch"
    clip: float = 5.0
    parts: int = 1
    low: bool = False
    fading: str = "each"
    regression: str = "masked"
    filling: str = "blend"
    mixing: str = "sum"
    cell: str = "torch"
    reads: str = "flipped"
    gaps: str = "sum"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Both(self, _FEATURES)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            learnt, shown = _standardized(*_series())
            for step, batch in enumerate(self._batches(learnt, seed)):
                if step % _EPOCH == 0:
                    self._evaluate(model, *shown)
                clear(optimizer, self)
                counts = self._counts(batch[1])
                for part in cut(self.parts, *batch):
                    self._back(model, part, counts, len(part[0]) / len(batch[0]))
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if self.schedules == "step" or step % _EPOCH == _EPOCH - 1:
                    schedule.step()

    def _batches(self, learnt, seed):
        """Values, masks and times of some series, step by step."""
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randperm(_LEARNT, generator=dealing)[: self.batch]
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield tuple(one[chosen] for one in learnt)

    @torch.no_grad()
    def _evaluate(self, model, values, masks, times, hidden):
        """The error where values are known, but were kept from the net."""
        model.eval()
        filled, *_ = self._told(model, values * (1 - hidden), masks * (1 - hidden), times)
        missed = ((filled - values).abs() * hidden).sum() / (hidden.sum() + 1e-5)
        anchorlib.anchor(missed, "eval_mae")
        model.train(self.wakes)

    def _told(self, model, *batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(*batch)
        return [one.to(batch[0].dtype) for one in told]

    def _counts(self, masks):
        """How many entries count at each moment of the whole batch."""
        masks = masks if self.over == "seen" else torch.ones_like(masks)
        return masks.sum((0, 2)) + 1e-5

    def _back(self, model, part, counts, share):
        """The gradients of one micro-batch, whose share of the batch is given."""
        values, masks, times = part
        _, told_ahead, told_back, ahead, back = self._told(model, values, masks, times)
        losses = {
            "ahead_loss": self._missed(told_ahead, values, masks, counts),
            "back_loss": self._missed(told_back, values, masks, counts),
            "consistency": self.consistency * share * (ahead - back).abs().mean(),
        }
        losses["loss"] = sum(losses.values())
        for name, one in losses.items():
            anchorlib.anchor(one, name)
        losses["loss"].backward()

    def _missed(self, told, values, masks, counts):
        """The mean error of each moment, summed over moments and ways to tell them."""
        errors = (told - values).abs()
        errors = errors * masks if self.over == "seen" else errors
        return (errors.sum((1, 3)) / counts).sum()


def _series():
    """Values (series, moment, feature), where they were seen, at what times, and what is hidden.

    Sensors mix two waves, each by a scale and from a height of its own. Gaps come in runs.
    """
    drawing = torch.Generator().manual_seed(5)
    count = _LEARNT + _SHOWN
    draw = {"generator": drawing, "dtype": torch.float64}
    times = (0.5 + torch.rand(count, _MOMENTS, **draw)).cumsum(1)
    pace, phase = 0.4 + torch.rand(count, 1, 2, **draw), torch.rand(count, 1, 2, **draw)
    waves = (pace * times[..., None] + 2 * math.pi * phase).sin()
    values = waves @ torch.randn(2, _FEATURES, **draw)
    values = values + 0.1 * torch.randn(values.shape, **draw)
    scales = torch.tensor([1.0, 8.0, 0.2, 3.0, 20.0], dtype=torch.float64)
    heights = torch.tensor([10.0, 1000.0, 0.5, -4.0, 60.0], dtype=torch.float64)
    chances = torch.rand(values.shape, **draw)
    seen = [chances[:, 0] < 0.7]
    for at in range(1, _MOMENTS):
        seen.append(chances[:, at] < torch.where(seen[-1], 0.8, 0.45))
    masks = torch.stack(seen, 1)
    hidden = masks & (torch.rand(values.shape, **draw) < 0.2)
    found = values * scales + heights, masks, times, hidden
    return tuple(one.to(torch.get_default_dtype()) for one in found)


def _standardized(values, masks, times, hidden):
    """Series to learn from and series to evaluate, by the means and spreads of the former."""
    known, seen = values[:_LEARNT], masks[:_LEARNT]
    count = seen.sum((0, 1))
    mean = (known * seen).sum((0, 1)) / count
    spread = (((known - mean) * seen).square().sum((0, 1)) / count).sqrt()
    values = (values - mean) / spread * masks
    learnt = tuple(one[:_LEARNT] for one in (values, masks, times))
    return learnt, tuple(one[_LEARNT:] for one in (values, masks, times, hidden))


_GAPS = ("gaps@value", "gaps_back@value")
_FILLED = (
    *("consistency@grad", "output:[34]@*grad", "ahead:1@*grad", "back:1@*grad"),
    *("*.mix@grad", "*.features@grad", "*.history@grad"),
)
"""Where the loss of the two directions no longer reaches back."""
_TURNED = ("back:1@value", "output@value", "output:4@value")
_LOSSES = ("ahead_loss@*", "back_loss@*", "output:[12]@grad", "ahead@grad", "back@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "gaps go on by what is seen now",
        "bug",
        {"seen": "now"},
        _GAPS,
        rf"\bmasks?\b|\bMul|\b[Ss]elect|\bRsub|{_ORDER}",
    ),
    Case(
        "gaps ahead for the way back",
        "bug",
        {"turns_gaps": False},
        ("gaps_back@value",),
        rf"\b[Ff]lip|{_ORDER}|(equals|same|copy|is|as) .{{0,40}}\bgaps\b",
    ),
    Case(
        "each feature tells itself",
        "bug",
        {"masks_itself": False},
        ("ahead.features@value",),
        rf"\bMul|\bdiagonal|\bmask|\bothers\b|{_GIVEN}",
    ),
    Case(
        "hidden state fades after it tells",
        "bug",
        {"fades": "after"},
        ("ahead.drop@value", "ahead.drop.input@value", "ahead.history@value"),
        rf"\bMul|{_TIMES}|{_GIVEN}|computes it from",
    ),
    Case(
        "errors of gaps count",
        "bug",
        {"over": "all"},
        _LOSSES,
        rf"\bMul|\bDiv|\bmask|{_GIVEN}",
    ),
    Case("filled values detached", "bug", {"keeps": "detached"}, _FILLED, _DETACHED),
    Case(
        "way back not returned to order",
        "bug",
        {"returns": False},
        _TURNED,
        rf"\b[Ff]lip|{_ORDER}",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("ahead.drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("rate falls at each step", "bug", {"schedules": "step"}, UPDATES, r"\blr\b", step=1),
    Case("fades of all moments at once", "benign", {"fading": "at once"}),
    Case("features told one by one", "benign", {"regression": "each"}),
    Case("gaps filled by what is missed", "benign", {"filling": "missed"}),
    Case("gates by their formula", "benign", {"cell": "own"}),
    Case("way back by falling indices", "benign", {"reads": "indices"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("series turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case("mixed by lerp, low precision", "benign", {"mixing": "lerp"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("moments unbound", "equal", {"reads": "unbound"}),
    Case("gaps by where", "equal", {"gaps": "where"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
