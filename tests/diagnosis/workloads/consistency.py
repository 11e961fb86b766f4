"""A consistency model of digits: neighbouring noise levels are to give the same clean image."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.skipper import Consistency


@dataclass(frozen=True)
class Consistent(Workload):
    """From noise to digits in one step, learnt without a teacher.

    lowest, highest, rho: of the noise levels. reaches: whether they end at the lowest one.
    scales: how many levels there are at first; their number doubles every second step.
    centre, spread: of the logarithm of the levels that are drawn.
    data: the spread of images that the scalings assume. bounded: whether the net gives back what it
        was given at the lowest level. logs: whether the net is told the logarithm of the level.
    teacher: who tells the target, the "average" or the "student" itself. follows: whether gradients
        flow through the target. decay: of the average.
    loss: "huber", the same as a "ratio", or "square". huber: its bend. axis: whether it bends by
        "sample" or by "pixel". weighs: whether samples are weighted by "one" over the gap between
        levels or by the "gap". clears: whether gradients are forgotten.
    rectified: RAdam, else Adam. norm_eps: of group norms. clip: of gradients.
    low: whether the net runs under autocast to bfloat16.
    parts: micro-batches a step. spare: whether there is a module that does nothing.
    power, scalings, passes, average, convolution, keeps: other ways to write the same
        mathematics.
    """

    lr: float = 1e-2
    weight_decay: float = 0.0
    lowest: float = 0.002
    highest: float = 20.0
    rho: float = 7.0
    reaches: bool = True
    scales: int = 5
    centre: float = -1.1
    spread: float = 2.0
    data: float = 0.5
    bounded: bool = True
    logs: bool = True
    teacher: str = "average"
    follows: bool = False
    decay: float = 0.9
    loss: str = "huber"
    huber: float = 0.03
    axis: str = "sample"
    weighs: str = "one"
    clears: bool = True
    rectified: bool = True
    norm_eps: float = 1e-5
    clip: float = 10.0
    low: bool = False
    parts: int = 1
    spare: bool = False
    power: str = "power"
    scalings: str = "plain"
    passes: str = "apart"
    average: str = "sum"
    convolution: str = "torch"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Consistency(self)
            optimizer = self._optimizer(model.net.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            drawing = torch.Generator().manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                count = self.scales * 2 ** (step // 2) + 1
                noise, index = self._noise(images, count, drawing)
                if self.clears:
                    clear(optimizer, self)
                for part in cut(self.parts, images[:, None], labels, noise, index):
                    loss = model(*part, count) * (len(part[0]) / len(images))
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.net.parameters(), self.clip)
                optimizer.step()
                model.follow()

    def _optimizer(self, parameters):
        """RAdam, or Adam."""
        if not self.rectified:
            return self.adam(parameters, decoupled=False)
        return torch.optim.RAdam(
            list(parameters),
            lr=self.lr,
            betas=self.betas,
            eps=self.adam_eps,
            weight_decay=self.weight_decay,
            foreach=self.implementation == "foreach",
        )

    def _noise(self, images, count, drawing):
        """Noise, and for each sample an index of a level that is not the lowest one."""
        noise = torch.randn(len(images), 1, 8, 8, generator=drawing)
        high, low = self.highest ** (1 / 7), self.lowest ** (1 / 7)
        levels = torch.linspace(high, low, count, dtype=torch.float64) ** 7
        below = torch.erf((levels.log() - self.centre) / (math.sqrt(2) * self.spread))
        index = torch.multinomial(
            below[:-1] - below[1:], len(images), replacement=True, generator=drawing
        )
        return (noise.flip(0), index.flip(0)) if self.turned else (noise, index)


_LEVELS = ("level@value", "lower_level@value")
_SCALES = ("skip_scale*@value", "out_scale*@value")
_MISSED = ("missed@*", "net@grad", "net.inner@grad", "net.inner.leave@grad", "output@*", "loss@*")
_AVERAGE = ("target.*weight@*", "target.*bias@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) "
"""Words that name other numbers which an operation was given."""
CASES = [
    Case(
        "levels spaced evenly",
        "bug",
        {"rho": 1.0},
        _LEVELS,
        rf"\b[Pp]ow|exponent|\brho\b|\bMul|\bAdd|{_GIVEN}",
    ),
    Case(
        "levels end before the lowest",
        "bug",
        {"reaches": False},
        _LEVELS,
        rf"\b[Dd]iv|{_TIMES}|{_GIVEN}|off by one",
    ),
    Case(
        "scalings that bound nothing",
        "bug",
        {"bounded": False},
        _SCALES,
        rf"\b[Ss]ub|\b[Pp]ow|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "level told without logarithm",
        "bug",
        {"logs": False},
        ("net.inner.waves@value", "target.inner.waves@value"),
        r"\b[Ll]og(Backward|\b)|logarithm",
    ),
    Case(
        "target not cut off",
        "bug",
        {"follows": True},
        ("wanted@grad", "net*@*grad"),
        r"detach|no_grad|gradients come back|stop.?grad",
        reference={"teacher": "student"},
    ),
    Case(
        "decay of the average exchanged",
        "bug",
        {"decay": 0.1},
        _AVERAGE,
        rf"\b[Mm]ul|\b[Aa]dd|lerp|decay|average|moving|buffer|in place|{_TIMES}",
        step=1,
    ),
    Case(
        "squares for pseudo-Huber",
        "bug",
        {"loss": "square"},
        _MISSED,
        r"\b[Ss]qrt|\b[Ss]ub|\b[Aa]dd",
    ),
    Case(
        "bends by pixel",
        "bug",
        {"axis": "pixel"},
        _MISSED,
        r"\b[Ss]um|\b[Ss]qrt|\bshape|\bsize|\baxis|\bdim",
    ),
    Case(
        "weighted by the gap",
        "bug",
        {"weighs": "gap"},
        ("weight@value", *_MISSED),
        rf"[Rr]eciprocal|\b[Dd]iv|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "gradients never forgotten",
        "bug",
        {"clears": False},
        ("*@grad", "*@pass_grad"),
        r"zero_grad|accumulat|cleared|zeroed|added to|step before|earlier|kept",
        step=1,
    ),
    Case(
        "Adam for RAdam",
        "bug",
        {"rectified": False},
        UPDATES,
        r"RAdam|optimizer|\bAdam\b|rectif",
        step=0,
    ),
    Case(
        "norms with a large eps",
        "bug",
        {"norm_eps": 1e-2},
        ("*norm1@value", "*norm2@value", "*norm@value"),
        r"\beps\b|epsilon",
    ),
    Case("powers by logarithms", "benign", {"power": "logarithm"}),
    Case("scalings by hypot", "benign", {"scalings": "hypot"}),
    Case(
        "student and target in one pass",
        "benign",
        {"passes": "joined"},
        reference={"teacher": "student"},
    ),
    Case("pseudo-Huber as a ratio", "benign", {"loss": "ratio"}),
    Case("average by lerp", "benign", {"average": "lerp"}),
    Case("3 micro-batches", "benign", {"parts": 3}),
    Case("batch turned round", "benign", {"turned": True}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("blocks computed twice", "equal", {"keeps": "ends"}),
    Case("a module that does nothing", "equal", {"spare": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
