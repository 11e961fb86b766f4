"""A denoiser of digits: waves of time that scale and shift, labels, a velocity, an average."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_CHANNELS, _WIDE, _TIMES, _NO_LABEL = 8, 16, 32, 10


@dataclass(frozen=True)
class Diffusion(Workload):
    """unit: what a time is divided by. rates: of the waves, spread over "all" or "less one".

    late: by how many times the schedule of the noise is late. rooted: whether the noise is scaled
        by the root of its variance. target: "velocity" or "noise". anew: whether the target's noise
        is drawn once more. bound: whether a ratio of signal to noise weighs 5 at "most" or "least".
    weighs: the losses of "samples" or their "mean". dropped: what a dropped label becomes.
    swapped: whether scale and shift change places. one: whether 1 is added to the scale.
    bent: whether the embedding of time passes an activation before it. halved: whether a block's
        sum is divided by the root of 2.
    pads: how convolutions pad. warms: whether the average follows faster at first.
    horizon: steps until the learning rate is 0. earliest: of the times that are drawn. gain: of the
        last weights.
    silu, affine, mse, averages, layout, checkpoints: how it is written, of one mathematics.
    """

    batch: int = 12
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.99)
    unit: float = 1.0
    rates: str = "all"
    late: int = 0
    rooted: bool = True
    target: str = "velocity"
    anew: bool = False
    bound: str = "most"
    weighs: str = "samples"
    dropped: int = _NO_LABEL
    swapped: bool = False
    one: bool = True
    bent: bool = True
    halved: bool = False
    pads: str = "zeros"
    warms: bool = True
    horizon: int = 12
    earliest: int = 0
    gain: float = 1.0
    parts: int = 1
    silu: str = "torch"
    affine: str = "plain"
    mse: str = "torch"
    averages: str = "lerp"
    layout: torch.memory_format = torch.contiguous_format
    checkpoints: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self).to(memory_format=self.layout)
            average = copy.deepcopy(model).requires_grad_(False)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.horizon)
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average, tensors="*@value", prefix="average")
            torch.manual_seed(seed)
            for step, (images, labels) in enumerate(self.images(seed)):
                batch = self._drawn(images[:, None], labels)
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    loss = self._loss(*model(*part)) / self.parts
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                optimizer.step()
                schedule.step()
                self._follow(average, model, step)
                with torch.no_grad():
                    average(*batch)

    def _drawn(self, images, labels):
        """Images, labels, those that are dropped, times and noise."""
        when = torch.randint(self.earliest, _TIMES, (len(images),))
        dropped = torch.rand(len(images)) < 0.25
        noise = torch.randn_like(images)
        images, noise = (x.contiguous(memory_format=self.layout) for x in (images, noise))
        return images, labels, dropped, when, noise

    def _loss(self, told, target, share):
        if self.mse == "torch":
            missed = functional.mse_loss(told, target, reduction="none").mean((1, 2, 3))
        else:
            missed = torch.linalg.vector_norm(told - target, dim=(1, 2, 3)).square() / 64
        ratio = share / (1 - share)
        ratio = ratio.clamp(max=5) if self.bound == "most" else ratio.clamp(min=5)
        weights = ratio / (1 + ratio)
        if self.weighs == "mean":
            return weights.mean() * missed.mean()
        return (weights * missed).mean()

    @torch.no_grad()
    def _follow(self, average, model, step):
        decay = min(0.9, (1 + step) / (10 + step)) if self.warms else 0.9
        for one, new in zip(average.parameters(), model.parameters(), strict=True):
            if self.averages == "lerp":
                one.lerp_(new, 1 - decay)
            else:
                one.mul_(decay).add_(new, alpha=1 - decay)


class SiLU(nn.Module):
    """x sigmoid(x), in one of two ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.way == "torch" else x * torch.sigmoid(x)


class Waves(nn.Module):
    """Times as sines and cosines of many rates."""

    def __init__(self, how: Diffusion) -> None:
        super().__init__()
        self.how = how

    def forward(self, when):
        """The waves of each time."""
        half = _WIDE // 2
        among = half if self.how.rates == "all" else half - 1
        rates = torch.exp(torch.arange(half) * (-math.log(10000.0) / among))
        angles = when[:, None] / self.how.unit * rates
        return torch.cat((angles.sin(), angles.cos()), 1)


class Block(nn.Module):
    """Two convolutions, a scale and a shift between them, and what was given added."""

    def __init__(self, how: Diffusion) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = (nn.GroupNorm(4, _CHANNELS) for _ in range(2))
        self.conv1, self.conv2 = (
            nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, padding_mode=how.pads) for _ in range(2)
        )
        self.act1, self.act2, self.act3 = (SiLU(how.silu) for _ in range(3))
        self.affine = nn.Linear(_WIDE, 2 * _CHANNELS)

    def forward(self, x, told):
        """One level, told of time and label."""
        how = self.how
        h = self.norm2(self.conv1(self.act1(self.norm1(x))))
        parts = self.affine(self.act2(told) if how.bent else told)[:, :, None, None].chunk(2, 1)
        scale, shift = parts[::-1] if how.swapped else parts
        if how.affine == "plain":
            h = h * (1 + scale if how.one else scale) + shift
        else:
            h = torch.addcmul(shift, h, 1 + scale)
        both = x + self.conv2(self.act3(h))
        return both / math.sqrt(2) if how.halved else both


class Denoiser(nn.Module):
    """What is seen in a noisy image."""

    def __init__(self, how: Diffusion) -> None:
        super().__init__()
        self.how = how
        self.waves, self.label = Waves(how), nn.Embedding(_NO_LABEL + 1, _WIDE)
        self.time = nn.Sequential(nn.Linear(_WIDE, _WIDE), SiLU(how.silu), nn.Linear(_WIDE, _WIDE))
        self.enter = nn.Conv2d(1, _CHANNELS, 3, padding=1, padding_mode=how.pads)
        self.block1, self.block2 = Block(how), Block(how)
        self.norm, self.act = nn.GroupNorm(4, _CHANNELS), SiLU(how.silu)
        self.leave = nn.Conv2d(_CHANNELS, 1, 3, padding=1, padding_mode=how.pads)
        with torch.no_grad():
            self.leave.weight.mul_(how.gain)

    def forward(self, noisy, when, labels):
        """The velocity or the noise."""
        told = self.time(self.waves(when)) + self.label(labels)
        h = self.enter(noisy)
        for block in (self.block1, self.block2):
            if self.how.checkpoints:
                h = checkpoint(block, h, told, use_reentrant=False)
            else:
                h = block(h, told)
        return self.leave(self.act(self.norm(h)))


class Net(nn.Module):
    """The schedule of the noise and the denoiser."""

    def __init__(self, how: Diffusion) -> None:
        super().__init__()
        self.how = how
        self.denoiser = Denoiser(how)
        steps = (torch.arange(_TIMES) + 1) / (_TIMES + 1)
        self.register_buffer("share", (steps * math.pi / 2).cos().square())

    def forward(self, images, labels, dropped, when, noise):
        """What is told, what it should be, and the share of the image in what was given."""
        how = self.how
        share = self.share[(when - how.late).clamp(min=0)][:, None, None, None]
        spread = (1 - share).sqrt()
        noisy = share.sqrt() * images + (spread if how.rooted else 1 - share) * noise
        told = self.denoiser(noisy, when, labels.masked_fill(dropped, how.dropped))
        noise = torch.randn_like(noise) if how.anew else noise
        velocity = share.sqrt() * noise - spread * images
        target = velocity if how.target == "velocity" else noise
        return told, target, share[:, 0, 0, 0]


_TARGET = ("output:1@value", "loss@value", "output@grad", "denoiser@grad", "denoiser.leave@grad")
_LOSS = ("loss@*", "output@grad", "denoiser@grad", "denoiser.leave@grad")
_WAVES = ("denoiser.waves@value",)
_ENTER = ("denoiser.enter@value",)
_SHIFTED = ("denoiser.block1.act3@value",)
CASES = [
    Case(
        "time in another unit",
        "bug",
        {"unit": float(_TIMES)},
        _WAVES,
        r"is [\d.]+ times A|[Dd]iv|[Mm]ul|\b[Ss]in\b|\b[Cc]os\b",
    ),
    Case(
        "rates over one less",
        "bug",
        {"rates": "less one"},
        _WAVES,
        r"\b[Ee]xp\b|[Mm]ul|\b[Ss]in\b|\b[Cc]os\b|arange",
    ),
    Case(
        "noise of the time before",
        "bug",
        {"late": 1},
        (*_ENTER, "output:2@value"),
        r"\brows\b|[Ii]ndex|\bshare\b",
    ),
    Case("variance for its root", "bug", {"rooted": False}, _ENTER, r"[Ss]qrt"),
    Case("noise for velocity", "bug", {"target": "noise"}, _TARGET, r"target|output:1|[Ss]ub"),
    Case("noise drawn anew", "bug", {"anew": True}, _TARGET, r"random|randn|drawn"),
    Case(
        "bounded from below",
        "bug",
        {"bound": "least"},
        _LOSS,
        r"[Cc]lamp|\bmin\b|\bmax\b",
    ),
    Case(
        "weights of the mean",
        "bug",
        {"weighs": "mean"},
        _LOSS,
        r"Mean|Mul",
    ),
    Case(
        "dropped label is a zero",
        "bug",
        {"dropped": 0},
        ("denoiser.label@value",),
        r"MaskedFill|masked_fill|\brows\b",
    ),
    Case(
        "scale and shift swapped",
        "bug",
        {"swapped": True},
        _SHIFTED,
        r"swap|other order|permut|[Ss]plit|[Cc]hunk",
    ),
    Case("scale without one", "bug", {"one": False}, _SHIFTED, r"\bAdd|\badd\b"),
    Case(
        "no activation before scale and shift",
        "bug",
        {"bent": False},
        ("denoiser.block1.affine@value",),
        r"act2|[Ss]ilu|SiLU",
    ),
    Case(
        "sum divided",
        "bug",
        {"halved": True},
        ("denoiser.block1@value", "denoiser.block2.norm1@value"),
        r"is 0\.7\d* times A|\bDiv|\bdiv\b",
    ),
    Case(
        "padded by reflection",
        "bug",
        {"pads": "reflect"},
        _ENTER,
        r"reflect|[Pp]ad|Conv2d\(",
    ),
    Case(
        "average not warmed up",
        "bug",
        {"warms": False},
        ("average.*@value",),
        r"is 0?\.\d+ times A|lerp",
    ),
    Case("horizon of the schedule", "bug", {"horizon": 6}, UPDATES, r"\blr\b"),
    Case("betas", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"betas?"),
    Case("times from one on", "data", {"earliest": 1}, ("input*@value",)),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("smaller last layer", "data", {"gain": 0.1}, ("*denoiser.leave.weight@value",)),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("own silu", "benign", {"silu": "own"}),
    Case("mse by a norm", "benign", {"mse": "norm"}),
    Case("scaled and shifted at once", "benign", {"affine": "at once"}),
    Case("average as a sum", "benign", {"averages": "sum"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("again", "equal"),
    Case("blocks checkpointed", "equal", {"checkpoints": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
]
