"""Optical flow between digits and deformed copies of them, learnt from the images alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    cut,
    renamed,
    warmed,
)
from tests.diagnosis.workloads.optical import Flows, enlarged, warp

_SIZE = 16
_LEVELS = ((2, 1.0), (4, 0.5))
"""By how much each level's flow is enlarged, and the weight of its losses."""


@dataclass(frozen=True)
class Warper(Workload):
    """A digit moves and bends; the net tells where each pixel went, and back.

    axes: the order of a flow's parts in a warp, "xy" or "yx". corners: whether a warp takes -1 and
        1 for the middles of the outermost pixels, as its grid does. grows: whether a flow on twice
        the pixels is twice as long. between: whether the flow of one level is "detached" or
        "attached" in the next. wraps: whether correlations look beyond the other border. moments:
        whether features are standardized by "image" or by "pixel". slope: of leaky ReLUs.
    back: whether the flow back is "warped" before it is compared, or "plain". bound: of what is
        seen in both images. over: losses are divided by the "seen" pixels or by "all".
    moved: which flow an image is warped by, its "own" or the "other".
    eps: of the Charbonnier loss. rooted: whether it is squared. grey: the factor of images in the
        census. falls: whether edges make smoothness less important.
    census, smooth: the weights of losses. clip: of the gradients' norm.
    zeroes: whether gradients are forgotten after a step. first: what steps first, the "optimizer"
        or the "schedule".
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    warping, enlarges, correlation, passes, signs, slopes, power, layout: other ways to write the
        same mathematics. keeps: the values kept for backward, "all" or the "edges". names: other
        ones of submodules. spare: whether the net has a layer that is not used.
    """

    steps: int = 5
    batch: int = 6
    lr: float = 5e-4
    adam_eps: float = 1e-6
    weight_decay: float = 0.05
    axes: str = "xy"
    corners: bool = True
    grows: bool = True
    between: str = "detached"
    wraps: bool = False
    moments: str = "image"
    slope: float = 0.1
    back: str = "warped"
    bound: tuple[float, float] = (0.05, 0.305)
    over: str = "seen"
    moved: str = "own"
    eps: float = 1e-2
    rooted: bool = True
    grey: float = 127.5
    falls: bool = True
    census: float = 0.5
    smooth: float = 0.2
    clip: float = 1.0
    zeroes: bool = True
    first: str = "optimizer"
    parts: int = 1
    low: bool = False
    warping: str = "torch"
    enlarges: str = "torch"
    correlation: str = "shifts"
    passes: str = "two"
    signs: str = "unfold"
    slopes: str = "slices"
    power: str = "torch"
    layout: torch.memory_format = torch.contiguous_format
    keeps: str = "all"
    names: tuple[tuple[str, str], ...] = ()
    spare: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Flows(self).to(memory_format=self.layout)
            renamed(model, dict(self.names))
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmed(step, 2, 8))
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                pair = self._pairs(images)
                if self.zeroes:
                    clear(optimizer, self)
                for part in cut(self.parts, *pair):
                    self._learn(model, *part)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                order = (optimizer, schedule)
                for one in order if self.first == "optimizer" else order[::-1]:
                    one.step()

    def _groups(self, model):
        """Weights, which decay, and biases, which do not."""
        return [
            {
                "params": [one for one in model.parameters() if (one.ndim > 1) is decays],
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]

    def _pairs(self, images):
        """Digits, and the same moved, bent, and a little brighter or darker."""
        count = len(images)
        shift, bend = 4 * torch.rand(count, 2, 1, 1) - 2, 0.7 * torch.randn(count, 2, 3, 3)
        light = 1 + 0.1 * torch.randn(count, 1, 1, 1)
        if self.turned:
            shift, bend, light = shift.flip(0), bend.flip(0), light.flip(0)
        first = functional.interpolate(images[:, None], size=(_SIZE, _SIZE), mode="bilinear")
        bend = functional.interpolate(bend, size=(_SIZE, _SIZE), mode="bicubic")
        y, x = torch.meshgrid(torch.arange(_SIZE), torch.arange(_SIZE), indexing="ij")
        places = torch.stack((x, y)) + shift + bend
        grid = (2 * places + 1) / _SIZE - 1
        second = functional.grid_sample(
            first, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False
        )
        return first, (second + 1) * light - 1

    def _learn(self, model, first, second):
        """The gradients of one micro-batch."""
        given = (one.contiguous(memory_format=self.layout) for one in (first, second))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            there, back = model(*given)
        losses = {"photometric": 0.0, "census": 0.0, "smooth": 0.0}
        for (factor, weight), ahead, behind in zip(_LEVELS, there, back, strict=True):
            flows = [enlarged(self, flow, factor) * factor for flow in (ahead, behind)]
            for one, other, flow, opposite in (
                (first, second, *flows),
                (second, first, *flows[::-1]),
            ):
                for name, loss in self._losses(one, other, flow, opposite).items():
                    losses[name] = losses[name] + loss * weight / 2
        loss = losses["photometric"] + self.census * losses["census"]
        loss = loss + self.smooth * losses["smooth"]
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        (loss / self.parts).backward()

    def _losses(self, one, other, flow, opposite):
        """The losses of one direction at one level."""
        seen = anchorlib.anchor(self._seen(flow, opposite), "seen")
        moved = flow if self.moved == "own" else opposite
        warped = anchorlib.anchor(warp(self, other, moved), "warped")
        return {
            "photometric": self._mean(self._charbonnier(one - warped, 0.45), seen),
            "census": self._census(one, warped, seen),
            "smooth": self._smooth(one, flow),
        }

    @torch.no_grad()
    def _seen(self, flow, opposite):
        """Which pixels are in both images: the flow back leads to where they were."""
        back = warp(self, opposite, flow) if self.back == "warped" else opposite
        missed = (flow + back).square().sum(1, keepdim=True)
        length = (flow.square() + back.square()).sum(1, keepdim=True)
        relative, absolute = self.bound
        return (missed < relative * length + absolute).to(flow.dtype)

    def _mean(self, missed, seen):
        """The mean over what is seen in each sample."""
        total = (missed * seen).sum((1, 2, 3))
        count = seen.sum((1, 2, 3)) if self.over == "seen" else seen[0].numel()
        return (total / (count + 1e-6)).mean()

    def _charbonnier(self, x, power):
        """A robust loss: nearly quadratic below eps."""
        squared = x.square() + (self.eps**2 if self.rooted else self.eps)
        if self.power == "torch":
            return squared**power
        return torch.exp(power * squared.log())

    def _census(self, one, other, seen):
        """How many neighbours are brighter or darker than their middle in one image alone."""
        parted = (self._signs(one) - self._signs(other)).square()
        missed = (parted / (0.1 + parted)).mean(1, keepdim=True)
        inner = functional.pad(torch.ones_like(seen[..., 1:-1, 1:-1]), [1] * 4)
        return self._mean(missed, seen * inner)

    def _signs(self, image):
        """By how much the pixels around each one are brighter."""
        image = (image + 1) * self.grey
        if self.signs == "unfold":
            around = functional.unfold(image, 3, padding=1).unflatten(2, (_SIZE, _SIZE))
            parted = around - image
        else:
            kernel = torch.eye(9, dtype=image.dtype)
            kernel = (kernel - kernel[4]).view(9, 1, 3, 3)
            parted = functional.conv2d(image, kernel, padding=1)
        return parted / (0.81 + parted.square()).sqrt()

    def _smooth(self, image, flow):
        """How unlike neighbours flow, where the image has no edge."""
        losses = []
        for axis in (2, 3):
            edges = self._slope(image, axis).abs().mean(1, keepdim=True)
            weights = (-2.0 if self.falls else 2.0) * edges
            missed = self._charbonnier(self._slope(flow, axis), 0.5)
            losses.append((weights.exp() * missed).mean())
        return sum(losses) / 2

    def _slope(self, x, axis):
        """Differences of neighbours."""
        few = x.shape[axis] - 1
        if self.slopes == "slices":
            return x.narrow(axis, 1, few) - x.narrow(axis, 0, few)
        kernel = torch.tensor([-1.0, 1.0], dtype=x.dtype).view((2, 1) if axis == 2 else (1, 2))
        return functional.conv2d(x, kernel.expand(x.shape[1], 1, -1, -1), groups=x.shape[1])


_WARPED = ("warp@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|grid) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "corners not aligned in warps",
        "bug",
        {"corners": False},
        _WARPED,
        r"align_corners",
    ),
    Case(
        "columns and rows of the flow exchanged",
        "bug",
        {"axes": "yx"},
        _WARPED,
        rf"\b[Ff]lip|{_ORDER}|grid",
    ),
    Case(
        "flow not doubled on finer pixels",
        "bug",
        {"grows": False},
        _WARPED,
        rf"\bMul|{_TIMES}|upsample",
    ),
    Case(
        "correlations wrap around",
        "bug",
        {"wraps": True},
        ("correlation@value",),
        r"\broll|\bpad|constant",
    ),
    Case(
        "moments of single pixels",
        "bug",
        {"moments": "pixel"},
        ("standard@value",),
        r"\bdims?\b|\baxes\b|\baxis\b|var_?mean|\bshapes?\b",
    ),
    Case(
        "coarse flow not detached",
        "bug",
        {"between": "attached"},
        ("output:?.1@grad", "estimators.1@grad", "estimators.1.flow@grad"),
        rf"{_DETACHED}|upsample\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}upsample",
    ),
    Case(
        "slope of leaky units left at torch's",
        "bug",
        {"slope": 0.01},
        ("pyramid.levels.0.0@value", "pyramid.levels.0.0.1@value"),
        r"slope",
    ),
    Case(
        "flow back not warped",
        "bug",
        {"back": "plain"},
        ("seen@value",),
        r"grid_sampl|\bwarp|\bseen\b",
    ),
    Case(
        "losses over all pixels",
        "bug",
        {"over": "all"},
        ("photometric@*", "census@*", "warped@grad"),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "warped by the other flow",
        "bug",
        {"moved": "other"},
        ("warped@value",),
        rf"grid|computes it from|{_GIVEN}|\boutput",
    ),
    Case(
        "epsilon not squared",
        "bug",
        {"rooted": False},
        ("photometric@*", "smooth@*", "warped@grad"),
        rf"\bAdd(Backward|\b)|\beps|\bPow\w* self|{_GIVEN}",
    ),
    Case(
        "census of images up to one",
        "bug",
        {"grey": 0.5},
        ("census@*", "warped@grad"),
        rf"\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "edges smoothed the more",
        "bug",
        {"falls": False},
        ("smooth@*",),
        rf"\bMul|\b[Ee]xp(Backward|\b)|other sign|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "gradients never cleared",
        "bug",
        {"zeroes": False},
        ("*.weight@grad", "*.bias@grad"),
        r"zero_grad|accumulat|\bsum of|added to|clear|step before|(last|earlier|previous) step",
        step=1,
    ),
    Case(
        "schedule steps first",
        "bug",
        {"first": "schedule"},
        UPDATES,
        r"\blr\b",
        step=0,
    ),
    Case("correlations of patches", "benign", {"correlation": "patches"}),
    Case("own bilinear lookup", "benign", {"warping": "own"}),
    Case("both directions in one pass", "benign", {"passes": "joined"}),
    Case("census by a convolution", "benign", {"signs": "convolution"}),
    Case("slopes by convolutions", "benign", {"slopes": "convolutions"}),
    Case("powers by logarithms", "benign", {"power": "exp"}),
    Case("enlarged by products", "benign", {"enlarges": "products"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("pairs turned", "benign", {"turned": True}),
    Case(
        "correlations of patches, low precision",
        "benign",
        {"correlation": "patches"},
        reference={"low": True},
    ),
    Case(
        "both directions in one pass, low precision",
        "benign",
        {"passes": "joined"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case(
        "layers of the context renamed", "equal", {"names": (("near", "conv1"), ("far", "conv2"))}
    ),
    Case("levels computed twice", "equal", {"keeps": "edges"}),
    Case("a layer that is not used", "equal", {"spare": True}),
    Case("died", "incomplete", {"ends_at": 4}),
]
