"""The segmenter's model: an encoder, a decoder that is given the encoder's levels, two heads."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 4
_WIDE = (8, 12, 16)


class GroupNorm(nn.GroupNorm):
    """A group norm, torch's or as one product and one sum."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        parts = x.to(self.weight.dtype).reshape(len(x), self.num_groups, -1)
        spread, mean = torch.var_mean(parts, 2, correction=0, keepdim=True)
        factor = (spread + self.eps).rsqrt()
        each = self.num_channels // self.num_groups
        factor, mean = (one[..., 0].repeat_interleave(each, 1) for one in (factor, mean))
        factor = factor * self.weight
        shift = self.bias - mean * factor
        return (x * factor[..., None, None] + shift[..., None, None]).to(x.dtype)


class Pool(nn.Module):
    """Means of 2 × 2 pixels."""

    way = "torch"

    def forward(self, x):
        """x, half as high and wide."""
        if self.way == "torch":
            return functional.avg_pool2d(x, 2)
        corners = (x[..., row::2, column::2] for row in (0, 1) for column in (0, 1))
        return sum(corners) / 4


class Block(nn.Module):
    """A convolution, a norm and an activation."""

    def __init__(self, into: int, out: int, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, padding=1, bias=False)
        self.norm, self.act = norm, nn.ReLU()

    def forward(self, x):
        """The block's output."""
        return self.act(self.norm(self.conv(x)))


class Join(nn.Module):
    """What comes from below beside the encoder's level, made one."""

    def __init__(self, how, below: int, skip: int, out: int) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(below + skip, out, 3, padding=1, bias=False)
        self.norm, self.act = nn.BatchNorm2d(out), nn.ReLU()

    def forward(self, below, skip):
        """One level of the decoder."""
        pair = (skip, below) if self.how.joins == "skip first" else (below, skip)
        if self.how.joins == "apart":
            kernels = self.conv.weight.split([one.shape[1] for one in pair], 1)
            parts = (
                functional.conv2d(one, kernel, padding=1)
                for one, kernel in zip(pair, kernels, strict=True)
            )
            return self.act(self.norm(sum(parts)))
        return self.act(self.norm(self.conv(torch.cat(pair, 1))))


class Rise(nn.ConvTranspose2d):
    """A transposed convolution that doubles both sides; its windows do not overlap."""

    def __init__(self, how, channels: int) -> None:
        super().__init__(channels, channels, 2, stride=2)
        self.how = how

    def forward(self, x):
        """x, twice as high and wide."""
        if self.how.rises == "torch":
            return super().forward(x)
        if self.how.rises == "other way":
            return functional.conv_transpose2d(x, self.weight.transpose(0, 1), self.bias, 2)
        out = torch.einsum("nihw,iokl->nohkwl", x, self.weight)
        return out.flatten(4, 5).flatten(2, 3) + self.bias[:, None, None]


class Larger(nn.Module):
    """Bilinear enlargement to twice both sides."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, twice as high and wide."""
        if self.how.enlarges == "torch":
            return functional.interpolate(
                x, scale_factor=2, mode="bilinear", align_corners=self.how.corners
            )
        high, wide = (
            functional.interpolate(torch.eye(side)[None], scale_factor=2, mode="linear")[0]
            for side in x.shape[2:]
        )
        return torch.einsum("ip,ncij,jq->ncpq", high, x, wide)


class SkipNet(nn.Module):
    """Three levels down and two up; the middle one has a head of its own."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        one, two, three = _WIDE
        norms = [GroupNorm(how.groups, wide) for wide in _WIDE]
        for norm in norms:
            norm.way = how.norming
        self.enter = Block(1, one, norms[0])
        self.pool1, self.down1 = Pool(), Block(one, two, norms[1])
        self.pool2, self.down2 = Pool(), Block(two, three, norms[2])
        self.pool1.way = self.pool2.way = how.pools
        self.rise, self.join2 = Rise(how, three), Join(how, three, two, two)
        self.larger, self.join1 = Larger(how), Join(how, two, one, one)
        self.drop, self.head = nn.Dropout2d(how.dropout), nn.Conv2d(one, CLASSES, 1)
        self.aux, self.full = nn.Conv2d(two, CLASSES, 1), Larger(how)

    def forward(self, x):
        """Logits of each pixel, and those of the middle level."""
        first = self.enter(x)
        second = self.down1(self.pool1(first))
        pooled = self.pool2(second)
        if self.how.keeps == "all":
            third = self.down2(pooled)
        else:
            third = checkpoint(self.down2, pooled, use_reentrant=False)
        middle = self.join2(self.rise(third), second)
        last = self.join1(self.larger(middle), first)
        beside = middle.detach() if self.how.aside == "detached" else middle
        return self.head(self.drop(last)), self.full(self.aux(beside))
