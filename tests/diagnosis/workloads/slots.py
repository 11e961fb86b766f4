"""Object-centric learning: slots take scenes of coloured digits apart, and paint them anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.slots_net import SIDE, Net

_PERIOD = 4
"""Steps in which the learning rate falls to its half."""


@dataclass(frozen=True)
class Slots(Workload):
    """Every scene shows two coloured digits, of which the second may hide parts of the first.

    slots, iterations: how many there are. compete: what attention is normalised over, "slots" or
        "cells". averages: whether a slot's update is a mean, divided "before" the sum over cells or
        "after" it or taken by "logs", or a "sum". attn_eps: added to attention before that.
    recurs: what the recurrent unit is given as its input, "updates" or "slots".
    residual: whether slots are added to what the perceptron tells. spread: of the first slots,
        "exp" of what is learnt or that "itself". through: the iterations that are learnt from,
        "all", or the "last" with the first slots straight through.
    layout: how channels are moved to the end, "permuted" or "reshaped". masked: what alphas are
        normalised over, "slots" or "channels".
    warmup: steps of rising rate. falls: whether the rate falls at each "step" or each "period".
    clip: of gradients. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    places, gru, projections, padded, decodes, keeps: other ways to write the same mathematics.
    """

    steps: int = 5
    lr: float = 4e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    slots: int = 4
    iterations: int = 3
    compete: str = "slots"
    averages: str = "before"
    attn_eps: float = 1e-8
    recurs: str = "updates"
    residual: bool = True
    spread: str = "exp"
    through: str = "all"
    layout: str = "permuted"
    masked: str = "slots"
    warmup: int = 2
    falls: str = "step"
    clip: float = 1.0
    parts: int = 1
    low: bool = False
    places: str = "dense"
    gru: str = "torch"
    projections: str = "apart"
    padded: bool = False
    decodes: str = "at once"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                scenes = _scenes(images)
                clear(optimizer, self)
                for (part,) in cut(self.parts, scenes):
                    self._learn(model, part)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _rate(self, step):
        """The factor of the learning rate: it rises at first, and falls all the time."""
        periods = step / _PERIOD if self.falls == "step" else step // _PERIOD
        return min((step + 1) / self.warmup, 1.0) * 0.5**periods

    def _learn(self, model, scenes):
        """The gradients of one micro-batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            painted, masks = model(scenes)
        anchorlib.anchor(masks, "masks")
        loss = functional.mse_loss(painted.to(scenes.dtype), scenes) / self.parts
        anchorlib.anchor(loss, "loss").backward()


def _scenes(images):
    """Black canvases (scene, colour, row, column) in -1 to 1 with two coloured digits each."""
    ink = (images.to(torch.get_default_dtype()).view(-1, 2, 8, 8) + 1) / 2
    count = len(ink)
    corners = torch.randint(0, SIDE - 8 + 1, (count, 2, 2))
    colours = 0.2 + 0.8 * torch.rand(count, 2, 3)
    scenes = torch.zeros(count, 3, SIDE, SIDE)
    for scene, digits, places, paints in zip(scenes, ink, corners.tolist(), colours, strict=True):
        for digit, (row, column), paint in zip(digits, places, paints, strict=True):
            window = scene[:, row : row + 8, column : column + 8]
            window.lerp_(paint[:, None, None].expand_as(window), digit.expand_as(window))
    return 2 * scenes - 1


_UPDATE = ("attention.gru@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case("softmax over cells", "bug", {"compete": "cells"}, ("attn@*", *_UPDATE), r"\bdim\b"),
    Case(
        "sum for mean",
        "bug",
        {"averages": "sum"},
        _UPDATE,
        rf"\bDiv|\bSum(Backward|\b)|{_TIMES}|a factor of its own",
    ),
    Case(
        "input and state exchanged",
        "bug",
        {"recurs": "slots"},
        _UPDATE,
        rf"{_GIVEN}|{_ORDER}|computes it from|exchange|swap|\barguments?\b",
    ),
    Case(
        "slots not added",
        "bug",
        {"residual": False},
        ("attention.norm_slots@value", "attention@value"),
        r"\bAdd(Backward|\b)",
    ),
    Case(
        "sigma without exp",
        "bug",
        {"spread": "itself"},
        ("attention.norm_slots@value",),
        r"\bexp(Backward|\b)",
    ),
    Case(
        "features reshaped",
        "bug",
        {"layout": "reshaped"},
        ("encoder.place@value",),
        rf"permute|transpose|{_ORDER}|\bView|reshape",
    ),
    Case(
        "masks over channels",
        "bug",
        {"masked": "channels"},
        ("masks@*", "output*@value"),
        r"\bdim\b",
    ),
    Case(
        "2 iterations",
        "bug",
        {"iterations": 2},
        ("attention@value", "attention.*@value", "attn@value"),
        r"\bcalls\b|\bcalled\b|iterat|twice|\b[23] times\b|only (in )?A\b|\bA alone|\blacks\b",
    ),
    Case(
        "slots not detached",
        "bug",
        {"through": "all"},
        ("attention.*@*grad", "attn@grad"),
        _DETACHED,
        reference={"through": "last"},
    ),
    Case("rate falls in stairs", "bug", {"falls": "period"}, UPDATES, r"\blr\b", step=1),
    Case("divided after the sum", "benign", {"averages": "after"}),
    Case("mean by logs", "benign", {"averages": "logs"}, reference={"attn_eps": 0.0}),
    Case("own recurrent unit", "benign", {"gru": "own"}),
    Case("slots padded to six", "benign", {"padded": True}),
    Case("decoded slot by slot", "benign", {"decodes": "one by one"}),
    Case("positions by a convolution", "benign", {"places": "convolved"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case(
        "one projection, low precision",
        "benign",
        {"projections": "joined"},
        reference={"low": True},
    ),
    Case(
        "other init",
        "data",
        {"init": 1},
        ("*weight*@value", "*bias*@value", "attention.mu@value", "attention.log_sigma@value"),
    ),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("iterations computed again", "equal", {"keeps": "slots"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
