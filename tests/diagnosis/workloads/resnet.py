"""A small residual net with batch norm, SGD with momentum and steps of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_CHANNELS = 8


@dataclass(frozen=True)
class ResNet(Workload):
    """bn_eps, momentum: of batch norm. evaluating_from: the step from which it is in eval mode.

    correction: of the standard deviation that images are divided by. slope: of leaky ReLU.
    padding: what stands around images. drops_at: the step at which the learning rate falls.
    low_stem: whether a scale that batch norm cancels is rounded to bfloat16.
    conv: how convolutions are written. stored: "last" for channels that are stored last.
    logs: whether the loss is computed once more, otherwise, and only looked at.
    """

    steps: int = 8
    batch: int = 32
    lr: float = 0.05
    weight_decay: float = 1e-3
    bn_eps: float = 1e-5
    momentum: float = 0.1
    evaluating_from: int | None = None
    correction: int = 1
    slope: float = 0.01
    padding: str = "zeros"
    drops_at: int = 5
    smoothing: float = 0.1
    nesterov: bool = True
    residual: float = 1.0
    pool: str = "mean"
    stride: int = 2
    conv: str = "torch"
    stored: str = "first"
    logs: bool = False
    parts: int = 1
    sgd_momentum: float = 0.9
    low_stem: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            if self.stored == "last":
                model = model.to(memory_format=torch.channels_last)
            optimizer = self.sgd(
                model.parameters(), nesterov=self.nesterov, momentum=self.sgd_momentum
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            for step, (images, labels) in enumerate(self.images(seed)):
                model.train(self.evaluating_from is None or step < self.evaluating_from)
                optimizer.param_groups[0]["lr"] = self.lr * (0.1 if step >= self.drops_at else 1)
                self._step(model, optimizer, self._prepared(images), labels)
            if self.evaluates:
                model.eval()
                model(self._prepared(images))

    def _prepared(self, images: torch.Tensor) -> torch.Tensor:
        spread = images.std(correction=self.correction) + 1e-3
        x = ((images - images.mean()) / spread)[:, None]
        return x.contiguous(memory_format=torch.channels_last) if self.stored == "last" else x

    def _step(self, model, optimizer, images, labels) -> None:
        clear(optimizer, self)
        for x, y in cut(self.parts, images, labels):
            logits = model(x)
            loss = functional.cross_entropy(logits, y, label_smoothing=self.smoothing)
            if self.logs:
                with torch.no_grad():
                    anchorlib.anchor((logits.softmax(-1).max(-1).values).mean(), "confidence")
            anchorlib.anchor(loss, "loss")
            (loss / self.parts).backward()
        optimizer.step()


class Conv(nn.Conv2d):
    """A convolution, by torch's kernel or as a matrix product."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "torch":
            return super().forward(x)
        columns = functional.unfold(x, 3, padding=1, stride=self.stride)
        out = self.weight.flatten(1) @ columns
        return out.unflatten(-1, (x.shape[2] // self.stride[0], -1))


class Part(nn.Module):
    """Two convolutions with batch norms, and what stands beside them."""

    def __init__(self, how: ResNet, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.how = how

        def conv(n, m, s):
            one = Conv(n, m, 3, s, 1, bias=False, padding_mode=how.padding)
            one.way = how.conv
            return one

        def norm():
            return nn.BatchNorm2d(after, eps=how.bn_eps, momentum=how.momentum)

        self.conv1, self.bn1 = conv(before, after, stride), norm()
        self.act1, self.act2 = nn.LeakyReLU(how.slope), nn.LeakyReLU(how.slope)
        self.conv2, self.bn2 = conv(after, after, 1), norm()
        self.beside = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x):
        """The residual sum."""
        y = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        y = y if self.how.residual == 1 else y * self.how.residual
        return self.act2(y + self.beside(x))


class Net(nn.Module):
    """A stem, two parts, a head."""

    def __init__(self, how: ResNet) -> None:
        super().__init__()
        self.scale = torch.tensor(1.37)
        if how.low_stem:
            self.scale = self.scale.bfloat16().float()
        self.stem = nn.Conv2d(1, _CHANNELS, 3, padding=1)
        self.bn = nn.BatchNorm2d(_CHANNELS)
        self.part1 = Part(how, _CHANNELS, _CHANNELS, 1)
        self.part2 = Part(how, _CHANNELS, 2 * _CHANNELS, how.stride)
        self.pool = nn.AdaptiveAvgPool2d(1) if how.pool == "mean" else nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(2 * _CHANNELS, 10)

    def forward(self, x):
        """Logits."""
        x = self.part2(self.part1(torch.relu(self.bn(self.stem(x) * self.scale))))
        return self.head(self.pool(x).flatten(1))


CASES = [
    Case(
        "batch norm eps", "bug", {"bn_eps": 1e-3}, ("part1.bn1@value",), r"eps=0\.001|eps.*1e-0?3"
    ),
    Case(
        "batch norm momentum",
        "bug",
        {"momentum": 0.01},
        ("part1.bn1.running_*@value",),
        r"momentum",
    ),
    Case(
        "eval from step 4",
        "bug",
        {"evaluating_from": 4},
        ("bn@value", "part1.bn1@value", "input@value", "stem@value"),
        r"eval mode",
    ),
    Case("biased std of the input", "data", {"correction": 0}, ("input*@value",)),
    Case("slope", "bug", {"slope": 0.2}, ("part1.act1@value",), r"negative_slope"),
    Case("padding", "bug", {"padding": "reflect"}, ("part1.conv1@value",), r"reflect|padding_mode"),
    Case("learning rate falls early", "bug", {"drops_at": 4}, UPDATES, r"\blr\b", step=4),
    Case(
        "no label smoothing", "bug", {"smoothing": 0.0}, ("loss@value", "head@grad"), r"smoothing"
    ),
    Case("no nesterov", "bug", {"nesterov": False}, UPDATES, r"nesterov"),
    Case("residual scale", "bug", {"residual": 0.5}, ("part1*@value",), r"\bMul|0\.5"),
    Case("max for mean", "bug", {"pool": "max"}, ("pool@value",), r"MaxPool|AdaptiveMax"),
    Case("weight decay", "bug", {"weight_decay": 0.0}, UPDATES, r"weight_decay"),
    Case("momentum", "bug", {"sgd_momentum": 0.8}, UPDATES, r"momentum"),
    Case(
        "low scale behind batch norm",
        "bug",
        {"low_stem": True},
        ("bn.running_*@value", "stem@value", "bn@value"),
        r"ToCopy|to bfloat16|is [\d.]+ times A|other tensor\(1\.37\) \| tensor\(1\.36719\)",
    ),
    Case(
        "schedule behind rounding",
        "bug",
        {"conv": "unfold", "drops_at": 4},
        UPDATES,
        r"\blr\b",
        step=4,
    ),
    Case(
        "residual scale behind rounding",
        "bug",
        {"conv": "unfold", "residual": 0.5005},
        ("part1*@value",),
        r"MulBackward0 other 0\.5",
        reference={"residual": 0.5},
    ),
    Case("other init", "data", {"init": 1}, ("*.weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("unfolded convolution", "benign", {"conv": "unfold"}),
    Case("channels last", "benign", {"stored": "last"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("2 threads, more images", "benign", {"threads": 2}, reference={"batch": 128}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("batch turned", "benign", {"turned": True}),
    Case("again", "equal"),
    Case("logs", "equal", {"logs": True}),
    Case("evaluates", "equal", {"evaluates": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 5}),
]
