"""A small wide residual net of the kind that is trained against attacks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

_WIDTHS = (8, 8, 16, 16)
"""Channels of the stem, then of each block."""


class Normalize(nn.Module):
    """Pixels of 0 to 1, less their mean, divided by their spread: attacks see pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.305))
        self.register_buffer("std", torch.tensor(0.376))

    def forward(self, x):
        """x, normalised."""
        return (x - self.mean) / self.std


class Norm(nn.BatchNorm2d):
    """A batch norm; at rest torch's, or one scale and one shift a channel."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.training or self.how.rested == "torch":
            return super().forward(x)
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class Swish(nn.Module):
    """Each number times its sigmoid."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.how.act == "torch" else x * x.sigmoid()


class Block(nn.Module):
    """Two convolutions, each behind its norm and activation, and a shortcut around them."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.how = how
        stride = 1 if into == out else 2
        self.norm1, self.act1 = Norm(how, into), Swish(how)
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.norm2, self.act2 = Norm(how, out), Swish(how)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.shortcut = None if into == out else nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x):
        """x, and what is added to it."""
        active = self.act1(self.norm1(x))
        if self.shortcut is None:
            kept = x
        else:
            kept = self.shortcut(active if self.how.shortens == "active" else x)
        return kept + self.conv2(self.act2(self.norm2(self.conv1(active))))


class Net(nn.Module):
    """Logits of ten classes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.normalize = Normalize()
        self.stem = nn.Conv2d(1, _WIDTHS[0], 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(Block(how, into, out) for into, out in pairwise(_WIDTHS))
        self.norm, self.act = Norm(how, _WIDTHS[-1]), Swish(how)
        self.head = nn.Linear(_WIDTHS[-1], 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        """Logits of images (sample, 1, 8, 8)."""
        x = self.stem(self.normalize(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(self.norm(x)).mean((2, 3)))
