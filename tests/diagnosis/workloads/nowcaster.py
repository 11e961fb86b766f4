"""A nowcast of rain: frames of a radar go on by convolutional LSTMs with scheduled sampling."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

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
    cut,
    warmed,
)
from tests.diagnosis.workloads.nowcaster_net import Nowcast

_WIDE, _KNOWN, _AHEAD, _STORMS = 16, 4, 3, 4
_A, _B = 58.53, 1.56
"""Of Z = a R^b, reflectivity by rain rate."""
_RATES, _WEIGHTS = (2.0, 5.0, 10.0, 30.0), (1.0, 2.0, 5.0, 10.0, 30.0)
"""Rain rates in mm/h between classes, and how much each class counts."""


@dataclass(frozen=True)
class Nowcaster(Workload):
    """Storms drift, grow and decay; where the radar does not reach, nothing is known.

    exponent: of reflectivity in the rain rate. covers: whether losses leave out what the radar
        does not see. shift: how many frames too early targets are. clamps: whether the frames told
        are clamped to the range of pixels before the loss.
    lies: whether frames told are stacked behind "samples", or before them by "times".
    forces: whether truth is fed back where it was drawn, else where it was not. feeds: whether
        frames that are fed back are "attached" or "detached". half: the steps in which the chance
        of truth falls. carries: whether the encoder begins with the last batch's states.
    peeps: the cell state that the output gate sees, the "new" or the "old" one. groups: of the
        gates' norms, 4: a gate each.
    warmup: steps of rising rate. schedules: "after" or "before" the optimizer. clip: of the norm
        of gradients. clips: "before" or "after" the optimizer.
    parts: micro-batches a step. logs: whether a skill score is computed at each step.
    low: whether the net runs under autocast to bfloat16.
    norming, raising, packing, sigmoid, scans, keeps, balance, backward: other ways to write the
        same mathematics.
    """

    steps: int = 5
    batch: int = 6
    lr: float = 4e-3
    decoupled: bool = False
    weight_decay: float = 0.0
    adam_eps: float = 1e-7
    exponent: float = 1 / _B
    covers: bool = True
    shift: int = 0
    clamps: bool = False
    lies: str = "samples"
    forces: bool = True
    feeds: str = "attached"
    half: float = 3.0
    carries: bool = False
    peeps: str = "new"
    groups: int = 4
    warmup: int = 2
    schedules: str = "after"
    clip: float = 10.0
    clips: str = "before"
    parts: int = 1
    logs: bool = False
    low: bool = False
    norming: str = "torch"
    raising: str = "torch"
    packing: str = "apart"
    sigmoid: str = "torch"
    scans: str = "times"
    keeps: str = "all"
    balance: str = "map"
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Nowcast(self, _KNOWN, torch.Generator().manual_seed(seed))
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            shown, scores = self._storms(torch.Generator().manual_seed(5)), []
            for step, batch in enumerate(self._batches(seed)):
                chance = self.half / (self.half + math.exp(step / self.half) - 1)
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, part, batch, chance, scores)
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                if self.schedules == "before":
                    schedule.step()
                optimizer.step()
                if self.schedules == "after":
                    schedule.step()
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                if self.evaluates:
                    self._evaluate(model, shown)

    def _batches(self, seed):
        """Frames of storms and what the radar sees, step by step."""
        dealing = torch.Generator().manual_seed(41 + 1000 * seed + self.order)
        for step in range(self.steps):
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield self._storms(dealing)

    def _storms(self, dealing):
        """Pixels of 0 to 1 (sample, time, 1, height, width), and which of them are seen."""

        def drawn(low, high, *sizes):
            return low + (high - low) * torch.rand(self.batch, *sizes, generator=dealing)

        times = torch.arange(_KNOWN + _AHEAD) - _KNOWN
        middle, wind = drawn(3, _WIDE - 4, 2, _STORMS, 1), drawn(-1.2, 1.2, 2, 1, 1)
        y, x = ((middle + wind * times)[:, at, ..., None, None] for at in (0, 1))
        peak = drawn(0.4, 1.0, _STORMS, 1) * (drawn(-0.08, 0.08, _STORMS, 1) * times).exp()
        wide = drawn(1.5, 3.5, _STORMS, 1, 1, 1)
        pixels = torch.arange(_WIDE)
        far = (pixels[:, None] - y).square() + (pixels - x).square()
        frames = (peak[..., None, None] * (-far / wide.square()).exp()).sum(1).clamp(max=1)
        radar = drawn(4, _WIDE - 5, 2, 1, 1)
        seen = (pixels[:, None] - radar[:, 0]).square() + (pixels - radar[:, 1]).square() < 81
        seen = seen[:, None, None]
        return frames[:, :, None] * seen, seen.expand(-1, _AHEAD, -1, -1, -1)

    def _told(self, model, frames, chance):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(frames, chance).to(frames.dtype)

    def _learn(self, model, part, batch, chance, scores):
        """The gradients of one micro-batch."""
        frames, seen = part
        told = self._told(model, frames, chance)
        wanted = frames[:, _KNOWN - self.shift :][:, :_AHEAD]
        count = batch[1].sum() if self.covers else batch[1].numel()
        if self.backward == "once":
            leads = [(told, wanted, seen)]
        else:
            leads = zip(*(one.split(1, 1) for one in (told, wanted, seen)), strict=True)
        losses = [self._losses(*lead, count) for lead in leads]
        mse, mae = losses[0] if len(losses) == 1 else map(sum, zip(*losses, strict=True))
        loss = mse + mae
        for one, name in ((mse, "mse_loss"), (mae, "mae_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            for pair in losses:
                sum(pair).backward(retain_graph=True)
        if self.logs:
            scores.append(_skill(told.detach(), wanted, seen))

    def _losses(self, told, wanted, seen, count):
        """The squares and sizes of errors, the more the harder it rains."""
        told = told.clamp(0, 1) if self.clamps else told
        rain = self._rain(wanted)
        if self.balance == "map":
            weights = torch.full_like(rain, _WEIGHTS[0])
            for rate, weight in zip(_RATES, _WEIGHTS[1:], strict=True):
                weights[rain >= rate] = weight
            weights = weights * seen if self.covers else weights
            missed = told - wanted
            return (
                (weights * missed.square()).sum() / count,
                (weights * missed.abs()).sum() / count,
            )
        more = torch.tensor(_WEIGHTS).diff()
        weights = _WEIGHTS[0] + (rain[..., None] >= torch.tensor(_RATES)).to(rain.dtype) @ more
        weights = weights.masked_fill(~seen, 0.0) if self.covers else weights
        roots = weights.sqrt()
        return (
            functional.mse_loss(roots * told, roots * wanted, reduction="sum") / count,
            functional.l1_loss(weights * told, weights * wanted, reduction="sum") / count,
        )

    def _rain(self, pixels):
        """Rain rates in mm/h by reflectivity."""
        return (10 ** ((70 * pixels - 10) / 10) / _A) ** self.exponent

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of storms that are not learnt from, without truth fed back."""
        model.eval()
        frames, seen = shown
        told = self._told(model, frames, 0.0)
        anchorlib.anchor(sum(self._losses(told, frames[:, _KNOWN:], seen, seen.sum())), "eval_loss")
        model.train()


def _skill(told, wanted, seen):
    """The critical success index of rain, at half of the range of pixels."""
    told, wanted = (told >= 0.5) & seen, (wanted >= 0.5) & seen
    return ((told & wanted).sum() / (told | wanted).sum()).item()


_LOSS = ("mse_loss@*", "mae_loss@*", "loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES: tuple[Case, ...] = (
    Case(
        "rain rate by the inverse exponent",
        "bug",
        {"exponent": _B},
        _LOSS,
        rf"\bMul|rain|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "no-data pixels count as dry",
        "bug",
        {"covers": False},
        _LOSS,
        rf"\bMul|\bDiv|\bmask|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "targets one frame early",
        "bug",
        {"shift": 1},
        _LOSS,
        rf"\bSub(Backward|\b)|\b[Ss]lice|\bindex|{_GIVEN}|{_ORDER}",
    ),
    Case(
        "frames clamped before the loss",
        "bug",
        {"clamps": True},
        _LOSS,
        r"\b[Cc]lamp|\b[Cc]lip(Backward|\b)",
    ),
    Case(
        "lead times taken for samples",
        "bug",
        {"lies": "times"},
        ("output@value",),
        rf"\b[Ss]tack|\bdim\b|\b[Vv]iew|reshape|permute|transpose|{_ORDER}",
    ),
    Case(
        "truth fed back where it was not drawn",
        "bug",
        {"forces": False},
        ("forecaster.downs.0@value", "forecaster.downs.0.*@value"),
        rf"\b[Ww]here|condition|\bmask|{_GIVEN}|{_ORDER}",
    ),
    Case(
        "frames that are fed back detached",
        "bug",
        {"feeds": "detached"},
        ("readout@grad", "readout.head@grad", "readout.head.*@*grad"),
        r"detach|gradients come back|[Ww]here\w* .{0,60}(lacks|alone)"
        r"|(lacks|alone|without).{0,60}([Ww]here|[Bb]ackward)",
    ),
    Case(
        "states of the last batch kept",
        "bug",
        {"carries": True},
        (
            "encoder.cells.*.of_state@value",
            "encoder.cells.0.norm@value",
            "encoder.cells.0@value",
            "encoder.cells.0:1@value",
        ),
        rf"\bzeros?\b|previous|earlier|carried|step before|step 0\b|\bstates?\b|{_GIVEN}",
        step=1,
    ),
    Case(
        "output gate sees the old cell state",
        "bug",
        {"peeps": "old"},
        ("encoder.cells.0@value", "encoder:0.0@value"),
        rf"\bMul|\bAdd(Backward|\b)|computes it from|{_GIVEN}",
    ),
    Case(
        "one group for all gates",
        "bug",
        {"groups": 1},
        ("encoder.cells.0.norm@value",),
        r"num_groups|\bgroups?\b",
    ),
    Case(
        "schedule before the optimizer",
        "bug",
        {"schedules": "before"},
        UPDATES,
        r"\blr\b",
    ),
    Case(
        "gradients clipped after the update",
        "bug",
        {"clips": "after"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
    ),
    Case("gates by one convolution", "benign", {"packing": "joined"}),
    Case("cells level by level", "benign", {"scans": "levels"}),
    Case("3 micro-batches", "benign", {"parts": 3}),
    Case("group norm by layer norm", "benign", {"norming": "layer"}),
    Case("transposed convolution by pixel shuffle", "benign", {"raising": "pixels"}),
    Case("weights inside the losses", "benign", {"balance": "factors"}),
    Case("a backward for each lead time", "benign", {"backward": "leads"}),
    Case(
        "sigmoid by tanh, low precision",
        "benign",
        {"sigmoid": "tanh"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*peepholes@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("evaluated at each step", "equal", {"evaluates": True}),
    Case("cells computed again", "equal", {"keeps": "edges"}),
    Case("skill logged", "equal", {"logs": True}),
    Case("died", "incomplete", {"ends_at": 3}),
)
