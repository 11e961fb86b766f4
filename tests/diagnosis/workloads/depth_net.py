"""The net that tells depth: an encoder, a decoder that is given its maps, and a bounded depth."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

FARTHEST = 10.0
"""The depth that the net can tell at most."""


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or a product with patches."""

    def __init__(self, how, given: int, made: int, stride: int = 1) -> None:
        super().__init__(given, made, 3, stride, 1)
        self.how = how

    def forward(self, x):
        """x, convolved."""
        if self.how.convolution == "torch":
            return super().forward(x)
        step = self.stride[0]
        patches = functional.unfold(x, 3, padding=1, stride=step)
        told = self.weight.flatten(1) @ patches + self.bias[:, None]
        return told.unflatten(2, (x.shape[2] // step, x.shape[3] // step))


class Joined(nn.Conv2d):
    """A 3 × 3 convolution of two stacked maps."""

    def __init__(self, how, given: int, skipped: int, made: int) -> None:
        super().__init__(given + skipped, made, 3, padding=1)
        self.how = how
        self.sizes = given, skipped

    def forward(self, x, skip):
        """Both, convolved."""
        if self.how.joins == "stacked":
            return super().forward(torch.cat((x, skip), 1))
        ours, theirs = self.weight.split(self.sizes, 1)
        told = functional.conv2d(x, ours, self.bias, padding=1)
        return told + functional.conv2d(skip, theirs, padding=1)


class Norm(nn.GroupNorm):
    """A group norm, torch's or by its formula."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(4, channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        groups = x.unflatten(1, (self.num_groups, -1))
        spread, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
        normed = ((groups - mean) / (spread + self.eps).sqrt()).flatten(1, 2)
        return normed * self.weight[:, None, None] + self.bias[:, None, None]


def block(how, given: int, made: int, stride: int = 1) -> nn.Sequential:
    """A convolution, a norm and what bends."""
    parts = {"conv": Conv(how, given, made, stride), "norm": Norm(how, made), "act": nn.ReLU()}
    return nn.Sequential(OrderedDict(parts))


class Encoder(nn.Module):
    """Maps, each of half the size of the one before."""

    def __init__(self, how, widths) -> None:
        super().__init__()
        self.how = how
        pairs = zip((1, *widths[:-1]), widths, strict=True)
        self.stages = nn.ModuleList(
            block(how, given, made, 2 if at else 1) for at, (given, made) in enumerate(pairs)
        )

    def forward(self, x):
        """All maps, the largest first."""
        found = []
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False) if self.how.checkpointed else stage(x)
            found.append(x)
        return found


class Up(nn.Module):
    """A map, enlarged and seen with one of the encoder."""

    def __init__(self, how, given: int, skipped: int, made: int) -> None:
        super().__init__()
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=how.corners)
        self.join = Joined(how, given, skipped, made)
        self.norm0, self.act0 = Norm(how, made), nn.ReLU()
        self.block = block(how, made, made)

    def forward(self, x, skip):
        """The larger map."""
        return self.block(self.act0(self.norm0(self.join(self.enlarge(x), skip))))


class Net(nn.Module):
    """The depth of each pixel of an image."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        small, middle, large = widths = 8, 12, 16
        self.encoder = Encoder(how, widths)
        self.up1, self.up2 = Up(how, large, middle, middle), Up(how, middle, small, small)
        self.head = nn.Conv2d(small, 1, 3, padding=1)

    def forward(self, x):
        """Depths (image, 1, row, column)."""
        first, second, third = self.encoder(x)
        if self.how.skips == "detached":
            first, second = first.detach(), second.detach()
        x = self.up2(self.up1(third, second), first)
        return FARTHEST * self.head(x).sigmoid()
