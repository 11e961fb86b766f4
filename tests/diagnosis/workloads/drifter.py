"""A diffusion transformer that learns to turn noise into digits, by rectified flow."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, digits
from tests.diagnosis.workloads.drifter_net import CLASSES, Net

_SHOWN = 8
"""Images that the validation sees, and images that are made."""
_VALIDATED = (2, 4)
"""Steps before which there is a validation."""
_EULER = 3
_GUIDANCE = 2.0


@dataclass(frozen=True)
class Drifter(Workload):
    """Images are mixed with noise by a drawn time; the net tells the velocity from one to other.

    drawn: how times are drawn, "logit normal" or "evenly". heads_for: what velocities point to,
        "noise" or "data". ticks: what times are multiplied by before their embedding.
    drop: the share of dropped classes. null: the class that stands for none.
    around_one: whether scales are added to one. gated: whether the two layers have their gate.
    gelu: its approximation, "tanh" or "none". joins: whether patches are put back along "rows" or
        along "columns".
    warms: whether the average of the weights forgets sooner at first. wakes: whether the model is
        in training mode again after a validation.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    patches, norming, attention, padded, modulations, keeps, missed, averaged: other ways to write
        the same mathematics.
    """

    lr: float = 3e-3
    weight_decay: float = 0.03
    drawn: str = "logit normal"
    heads_for: str = "noise"
    ticks: float = 1000.0
    drop: float = 0.2
    null: int = CLASSES
    around_one: bool = True
    gated: bool = True
    gelu: str = "tanh"
    joins: str = "rows"
    warms: bool = True
    wakes: bool = True
    parts: int = 1
    low: bool = False
    patches: str = "convolution"
    norming: str = "torch"
    attention: str = "torch"
    padded: bool = False
    modulations: str = "each"
    keeps: str = "all"
    missed: str = "velocity"
    averaged: str = "sum"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            ema = copy.deepcopy(model).eval().requires_grad_(False)
            optimizer = self.adam(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(ema, tensors="*", prefix="ema")
            torch.manual_seed(seed)
            drawing = torch.Generator().manual_seed(31 + 1000 * seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                if step in _VALIDATED:
                    self._validate(model, ema)
                clear(optimizer, self)
                clean = images[:, None].to(model.places.dtype)
                noise, times = self._draws(clean, drawing)
                for part in cut(self.parts, clean, noise, times, labels):
                    self._learn(model, *part)
                optimizer.step()
                self._average(ema, model, step)

    def _draws(self, images, drawing):
        """Noise, and times from 0 to 1."""
        noise = torch.randn(images.shape, generator=drawing)
        if self.drawn == "evenly":
            return noise, torch.rand(len(images), generator=drawing)
        return noise, torch.randn(len(images), generator=drawing).sigmoid()

    def _told(self, model, noised, times, labels):
        """The velocities that a model tells."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(noised, times, labels).to(noised.dtype)

    def _errors(self, model, images, noise, times, labels):
        """The mean square error of each image's velocity."""
        share = times[:, None, None, None]
        noised = (1 - share) * images + share * noise
        target = noise - images if self.heads_for == "noise" else images - noise
        anchorlib.anchor(target, "target")
        told = self._told(model, noised, times, labels)
        if self.missed == "velocity":
            return functional.mse_loss(told, target, reduction="none").mean((1, 2, 3))
        return (noised - share * told - images).square().mean((1, 2, 3)) / times.square()

    def _learn(self, model, *part):
        """The gradients of one micro-batch."""
        errors = anchorlib.anchor(self._errors(model, *part), "errors")
        loss = errors.mean() / self.parts
        anchorlib.anchor(loss, "loss").backward()

    @torch.no_grad()
    def _average(self, ema, model, step):
        """Move the average of the weights towards the weights."""
        keeps = min(0.999, (1 + step) / (10 + step)) if self.warms else 0.999
        averages, weights = list(ema.parameters()), list(model.parameters())
        if self.averaged == "foreach":
            torch._foreach_mul_(averages, keeps)
            torch._foreach_add_(averages, weights, alpha=1 - keeps)
            return
        for average, weight in zip(averages, weights, strict=True):
            if self.averaged == "sum":
                average.mul_(keeps).add_(weight, alpha=1 - keeps)
            else:
                average.lerp_(weight, 1 - keeps)

    @torch.no_grad()
    def _validate(self, model, ema):
        """Both models' losses on other images, and images that the average makes."""
        images, labels = (one[:_SHOWN] for one in digits())
        images = images[:, None].to(model.places.dtype)
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(5))
        times = (torch.arange(_SHOWN) + 0.5) / _SHOWN
        model.eval()
        for one, name in ((model, "valid_loss"), (ema, "ema_loss")):
            anchorlib.anchor(self._errors(one, images, noise, times, labels).mean(), name)
        model.train(self.wakes)
        anchorlib.anchor(self._made(ema, noise, labels), "samples")

    def _made(self, ema, x, labels):
        """Images made of noise, guided away from what no class has."""
        both = torch.cat((labels, torch.full_like(labels, self.null)))
        for at in range(_EULER, 0, -1):
            times = torch.full((len(both),), at / _EULER, dtype=x.dtype)
            told, free = self._told(ema, torch.cat((x, x)), times, both).chunk(2)
            x = x - (free + _GUIDANCE * (told - free)) / _EULER
        return x


_CONDITION = ("classes.table@value", "classes@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "velocities to the data",
        "bug",
        {"heads_for": "data"},
        ("target@value",),
        r"targets? differ|other sign|opposite|negat|is -1(\.0)? times|\bSub",
    ),
    Case(
        "times not in ticks",
        "bug",
        {"ticks": 1.0},
        ("times.waves@value",),
        rf"\bMul|\b1,?000\b|0\.001|\b(cos|sin)\b|frequenc|angle|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "last class dropped to",
        "bug",
        {"null": CLASSES - 1},
        _CONDITION,
        r"\bindices\b|\bindex\b|\brows?\b|\bwhere\b|\blabels?\b",
    ),
    Case(
        "scales not around one",
        "bug",
        {"around_one": False},
        ("blocks.0.norm1@value",),
        rf"\bAdd(Backward|\b)|\bMul|{_TIMES}|{_GIVEN}|all zeros?",
    ),
    Case(
        "layers without their gate",
        "bug",
        {"gated": False},
        ("blocks.0@value",),
        rf"\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "gelu not approximated",
        "bug",
        {"gelu": "none"},
        ("blocks.0.mlp.1@value",),
        r"\bgelu|approximate|\btanh\b",
    ),
    Case(
        "patches put back along columns",
        "bug",
        {"joins": "columns"},
        ("final@grad", "final.linear@grad", "output@value"),
        rf"permute|transpose|{_ORDER}|\bview|reshape|\baxes|\bdims?\b",
    ),
    Case(
        "average without warm-up",
        "bug",
        {"warms": False},
        ("ema.*@value",),
        rf"\blerp|\bmul|\bdecays?\b|0\.999|of the way|(moving|running) average|{_TIMES}",
        step=1,
    ),
    Case(
        "decay inside the gradient", "bug", {"decoupled": False}, UPDATES, r"decoupled|weight_decay"
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        _CONDITION,
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("patches by a linear layer", "benign", {"patches": "linear"}),
    Case("norm fused with its scale", "benign", {"norming": "fused"}),
    Case("tokens padded", "benign", {"padded": True}),
    Case("modulations of all blocks at once", "benign", {"modulations": "at once"}),
    Case("loss of the denoised image", "benign", {"missed": "image"}),
    Case("average by lerp", "benign", {"averaged": "lerp"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case(
        "attention by hand, low precision",
        "benign",
        {"attention": "own"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("times drawn evenly", "data", {"drawn": "evenly"}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("average by foreach", "equal", {"averaged": "foreach"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
