"""A small ConvNeXt: depthwise convolutions, layer norms, layer scale and stochastic depth."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_DEPTHS, _WIDTHS, _WIDER = (2, 2), (8, 16), 3
"""Blocks and channels of each stage, and how much wider a block is inside."""


class Norm(nn.LayerNorm):
    """A layer norm over channels, which are the last axis or the first one of an image."""

    def __init__(self, how, width: int, channels: str = "last") -> None:
        super().__init__(width, eps=1e-6)
        self.how, self.channels = how, channels

    def forward(self, x):
        """x, normed."""
        if self.channels == "last":
            return super().forward(x)
        if self.how.norming == "group":
            return functional.group_norm(x, 1, self.weight, self.bias, self.eps)
        if self.how.norming == "moved":
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        mean = x.mean(1, keepdim=True)
        spread = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(spread + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Patches(nn.Conv2d):
    """A convolution of patches that do not overlap, torch's or as one product."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 2, stride=2)
        self.how = how

    def forward(self, x):
        """Images of half the size."""
        if self.how.patching == "torch":
            return super().forward(x)
        x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3)
        return (x @ self.weight.flatten(1).t() + self.bias).permute(0, 3, 1, 2)


class Depthwise(nn.Conv2d):
    """A convolution of each channel by itself, torch's or a sum over its kernel's places."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width, width, 5, padding=2, groups=width)
        self.how = how

    def forward(self, x):
        """x, convolved."""
        if self.how.depthwise == "torch":
            return super().forward(x)
        (high, wide), padded = x.shape[2:], functional.pad(x, (2, 2, 2, 2))
        kernel, found = self.weight[:, 0, :, :, None, None], self.bias[:, None, None]
        for row in range(5):
            for column in range(5):
                part = padded[:, :, row : row + high, column : column + wide]
                found = found + part * kernel[:, row, column]
        return found


class Pointwise(nn.Linear):
    """A linear layer of the channels at each place, torch's or a 1 × 1 convolution."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out)
        self.how = how

    def forward(self, x):
        """x, whose last axis is the channels."""
        if self.how.pointwise == "linear":
            return super().forward(x)
        kernel = self.weight[:, :, None, None]
        return functional.conv2d(x.permute(0, 3, 1, 2), kernel, self.bias).permute(0, 2, 3, 1)


class DropPath(nn.Module):
    """Leaves out a block's branch for some samples: stochastic depth."""

    def __init__(self, how, share: float) -> None:
        super().__init__()
        self.how, self.share = how, share

    def forward(self, x):
        """x, of which some samples are zero and the others larger."""
        if not self.training:
            return x
        keep = 1 - self.share
        kept = x.new_empty(len(x), 1, 1, 1).bernoulli_(keep)
        if self.how.enlarges == "branch":
            return x.div(keep) * kept
        return x * (kept.div_(keep) if self.how.enlarges == "mask" else kept)


class Block(nn.Module):
    """Channels are convolved apart, then mixed at each place, and added to what was given."""

    def __init__(self, how, width: int, share: float) -> None:
        super().__init__()
        self.how = how
        self.dwconv = Depthwise(how, width)
        self.norm = Norm(how, width)
        self.pwconv1 = Pointwise(how, width, _WIDER * width)
        self.act = nn.GELU()
        self.pwconv2 = Pointwise(how, _WIDER * width, width)
        self.gamma = nn.Parameter(torch.full((width, 1, 1), how.layer_scale))
        self.drop_path = DropPath(how, share) if share else nn.Identity()

    def forward(self, x):
        """x (sample, channel, row, column), moved."""
        branch = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        branch = self.pwconv2(self.act(self.pwconv1(branch)))
        if self.how.scaling == "first":
            branch = self.gamma * branch.permute(0, 3, 1, 2)
        else:
            branch = (self.gamma.flatten() * branch).permute(0, 3, 1, 2)
        return x + self.drop_path(branch)


class ConvNeXt(nn.Module):
    """A stem of patches, two stages of blocks, and a head on the mean over all places."""

    def __init__(self, how, classes: int) -> None:
        super().__init__()
        self.how = how
        first, second = _WIDTHS
        self.downsample_layers = nn.ModuleList(
            [
                nn.Sequential(Patches(how, 1, first), Norm(how, first, "first")),
                nn.Sequential(Norm(how, first, "first"), Patches(how, first, second)),
            ]
        )
        shares = iter(torch.linspace(0, how.drop_path, sum(_DEPTHS)).tolist())
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block(how, width, next(shares)) for _ in range(depth)))
            for depth, width in zip(_DEPTHS, _WIDTHS, strict=True)
        )
        self.norm, self.head = Norm(how, second), nn.Linear(second, classes)
        self.apply(_begin)

    def forward(self, x):
        """Logits of images (sample, 1, row, column)."""
        for down, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = down(x)
            for block in stage:
                if self.how.keeps == "all" or not torch.is_grad_enabled():
                    x = block(x)
                else:
                    x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x.mean((-2, -1))))


def _begin(module):
    """Draw weights; wider than a large net's, as layers are narrow."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.2)
        nn.init.zeros_(module.bias)
