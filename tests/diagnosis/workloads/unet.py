"""A small U-Net that takes noise off images, under autocast to float16 with a GradScaler."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear

_CHANNELS = 8


@dataclass(frozen=True)
class UNet(Workload):
    """schedule: of the noise, a constant of the model. loss_scale: what the scaler begins with.

    unscales: whether gradients are unscaled before they are clipped.
    low: the element type of autocast, "" for none. crossed: whether a skip is joined otherwise.
    """

    steps: int = 6
    batch: int = 8
    lr: float = 2e-3
    gn_eps: float = 1e-5
    groups: int = 4
    upsample: str = "nearest"
    schedule: str = "cosine"
    loss_scale: float = 1024.0
    unscales: bool = True
    clip: float = 1.0
    low: str = "float16"
    crossed: bool = False
    loss: str = "mse"
    reduction: str = "mean"
    written: str = "torch"
    silu: str = "torch"
    scales: bool = True

    eps_of_noise = "float16"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            scaler = torch.amp.GradScaler("cpu", self.loss_scale, enabled=self.scales)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                clear(optimizer, self)
                loss = self._loss(model, images[:, None])
                anchorlib.anchor(loss, "loss")
                scaler.scale(loss).backward()
                if self.unscales:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                scaler.step(optimizer)
                scaler.update()

    def _loss(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        noise, when = torch.randn_like(images), torch.randint(0, 16, (len(images),))
        kept = model.kept[when][:, None, None, None]
        given = kept.sqrt() * images + (1 - kept).sqrt() * noise
        low = getattr(torch, self.low) if self.low else torch.float16
        with torch.autocast("cpu", low, enabled=bool(self.low)):
            told = model(given, when)
        if self.loss == "l1":
            return functional.l1_loss(told.float(), noise)
        if self.written == "own":
            return (told.float() - noise).square().mean()
        return functional.mse_loss(told.float(), noise, reduction=self.reduction)


class SiLU(nn.Module):
    """x sigmoid(x), in one of two ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.way == "torch" else x * torch.sigmoid(x)


class Part(nn.Module):
    """Convolution, group norm, time, activation."""

    def __init__(self, how: UNet, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.norm = nn.GroupNorm(how.groups, after, eps=how.gn_eps)
        self.time = nn.Embedding(16, after)
        self.act = SiLU(how.silu)

    def forward(self, x, when):
        """One level."""
        return self.act(self.norm(self.conv(x)) + self.time(when)[:, :, None, None])


class Net(nn.Module):
    """Down, middle, up, with a skip."""

    def __init__(self, how: UNet) -> None:
        super().__init__()
        self.how, wide = how, 2 * _CHANNELS
        self.down, self.middle = Part(how, 1, _CHANNELS), Part(how, _CHANNELS, wide)
        self.up = Part(how, wide + _CHANNELS, _CHANNELS)
        self.out = nn.Conv2d(_CHANNELS, 1, 1)
        steps = torch.arange(1, 17) / 17
        kept = (steps * math.pi / 2).cos() ** 2 if how.schedule == "cosine" else 1 - steps
        self.register_buffer("kept", kept)
        options = {} if how.upsample == "nearest" else {"align_corners": how.upsample == "aligned"}
        mode = "nearest" if how.upsample == "nearest" else "bilinear"
        self.larger = nn.Upsample(scale_factor=2, mode=mode, **options)

    def forward(self, x, when):
        """The noise that is seen."""
        top = self.down(x, when)
        low = self.larger(self.middle(functional.max_pool2d(top, 2), when))
        both = (low, top)
        return self.out(self.up(torch.cat(both[::-1] if self.how.crossed else both, 1), when))


CASES = [
    Case("group norm eps", "bug", {"gn_eps": 1e-2}, ("down.norm@value",), r"eps=0\.01|1e-0?2"),
    Case("groups", "bug", {"groups": 2}, ("down.norm@value",), r"GroupNorm 4|num_groups"),
    Case("upsampling", "bug", {"upsample": "bilinear"}, ("larger@value",), r"bilinear|Upsample"),
    Case(
        "align corners",
        "bug",
        {"upsample": "aligned"},
        ("larger@value",),
        r"align_corners",
        reference={"upsample": "bilinear"},
    ),
    Case("noise schedule", "bug", {"schedule": "linear"}, ("kept@value",), r"\bkept\b"),
    Case(
        "unscale missing",
        "bug",
        {"unscales": False},
        ("*@grad",),
        r"unscale|carr\w+ (its|the) scale|loss scale",
    ),
    Case(
        "skip joined otherwise",
        "bug",
        {"crossed": True},
        ("up.conv@value", "up*input*@value"),
        r"permut|other order|\bcat\b",
    ),
    Case("l1 for mse", "bug", {"loss": "l1"}, ("loss@value", "out@grad"), r"L1Loss|\bAbs"),
    Case(
        "sum for mean",
        "bug",
        {"reduction": "sum"},
        ("loss@value", "out@grad"),
        r"is [\d.]+ times A|reduction|sum",
    ),
    Case("clip", "bug", {"clip": 0.1}, ("*@grad",), r"clip|is [\d.]+ times A"),
    Case("bfloat16", "benign", {"low": "bfloat16"}),
    Case("float32", "benign", {"low": ""}),
    Case("loss scale 64 times", "benign", {"loss_scale": 65536.0}),
    Case("loss scale a 16th", "benign", {"loss_scale": 64.0}),
    Case("no scaler", "benign", {"scales": False}),
    Case("own mse", "benign", {"written": "own"}),
    Case("own silu", "benign", {"silu": "own"}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 2}),
]
