"""The model of a mender: a small U-Net whose convolutions know which pixels are holes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def convolved(how, x, weight, bias=None, stride: int = 1):
    """A 3 × 3 convolution, torch's or as a product with patches."""
    if how.convolution == "torch":
        return functional.conv2d(x, weight, bias, stride, 1)
    high = (x.shape[2] - 1) // stride + 1
    patches = functional.unfold(x, 3, padding=1, stride=stride)
    told = torch.einsum("ok,nkp->nop", weight.flatten(1).to(patches.dtype), patches)
    told = told if bias is None else told + bias[:, None]
    return told.unflatten(2, (high, -1))


class Partial(nn.Module):
    """A convolution of the pixels that are no holes, as if there were as many of them as ever."""

    def __init__(self, how, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.how, self.stride = how, stride
        self.weight = nn.Parameter(torch.empty(out, into, 3, 3))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.normal_(self.weight, std=(2 / (9 * into)) ** 0.5)
        nn.init.normal_(self.bias, std=0.1)

    def forward(self, x, seen):
        """What is told, and where; seen: 1 where a pixel of a channel is no hole."""
        how = self.how
        count = self._count(seen)
        there = (count > 0).to(x.dtype)
        x = x * seen if how.covers else x
        whole = 9 if how.window == "one" else 9 * x.shape[1]
        bias = self.bias.view(-1, 1, 1)
        if how.ratios == "apart":
            ratio = whole / (count + how.ratio_eps) * there
            if how.biases == "inside":
                told = convolved(how, x, self.weight, self.bias, self.stride)
                told = told * (ratio if how.evens else there)
            elif how.biases == "taken":
                told = convolved(how, x, self.weight, self.bias, self.stride) - bias
                told = (told * ratio + bias) * there
            else:
                told = convolved(how, x, self.weight, None, self.stride)
                told = (told * (ratio if how.evens else there) + bias) * there
        else:
            told = convolved(how, x, self.weight, None, self.stride)
            told = torch.where(count > 0, told / ((count + how.ratio_eps) / whole) + bias, 0)
        there = there if how.fills else self._kept(seen)
        return told, there.expand_as(told)

    def _count(self, seen):
        """How many of the pixels of all channels below a window are no holes."""
        how = self.how
        if how.counts == "convolution":
            ones = torch.ones_like(self.weight[:1])
            return functional.conv2d(seen, ones, None, self.stride, 1)
        pooled = functional.avg_pool2d(seen, 3, self.stride, 1)
        return 9 * pooled.sum(1, keepdim=True)

    def _kept(self, seen):
        """The holes, as they were."""
        return seen[:, :1, :: self.stride, :: self.stride]


class Gated(nn.Module):
    """A convolution whose one half says how much of the other half is let through."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.empty(2 * out, into, 3, 3))
        self.bias = nn.Parameter(torch.zeros(2 * out))
        nn.init.normal_(self.weight, std=(2 / (9 * into)) ** 0.5)

    def forward(self, x):
        """What is let through."""
        how = self.how
        if how.halves == "joined":
            value, gate = convolved(how, x, self.weight, self.bias).chunk(2, 1)
        else:
            parts = zip(self.weight.chunk(2), self.bias.chunk(2), strict=True)
            value, gate = (convolved(how, x, *one) for one in parts)
        value, gate = (value, gate) if how.lets == "second" else (gate, value)
        if how.gate == "tanh":
            return functional.elu(value) * gate.tanh()
        if how.gate == "halved":
            return functional.elu(value) * (0.5 + 0.5 * (gate / 2).tanh())
        return functional.elu(value) * gate.sigmoid()


class Norm(nn.BatchNorm2d):
    """A batch norm of statistics that are known before, torch's or folded into a factor."""

    def __init__(self, how, size: int) -> None:
        super().__init__(size)
        self.how = how
        nn.init.normal_(self.running_mean, std=0.2)
        nn.init.uniform_(self.running_var, 0.5, 1.5)

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or self.training:
            return super().forward(x)
        factor = self.weight * (self.running_var + self.eps).rsqrt()
        rest = self.bias - factor * self.running_mean
        return x * factor.view(-1, 1, 1) + rest.view(-1, 1, 1)


class Mender(nn.Module):
    """The U-Net: two partial convolutions down, two gated ones below, and two steps up."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.down1, self.down2 = Partial(how, 1, 8), Partial(how, 8, 12, 2)
        self.norm = Norm(how, 12)
        self.gated = nn.ModuleList(Gated(how, into, 12) for into in (12, 12))
        self.up = Partial(how, 20, 8)
        self.last = Gated(how, 9, 6)
        self.out = nn.Conv2d(6, 1, 1)

    def forward(self, x, seen):
        """The whole image, as it is told."""
        how = self.how
        one, seen1 = self.down1(x, seen)
        one = functional.leaky_relu(one, how.leak)
        two, seen2 = self.down2(one, seen1)
        two = self.norm(two).relu()
        for gated in self.gated:
            two = two + gated(two) if how.adds else gated(two)
        joined = torch.cat((self._grown(two), one), 1)
        seen3 = torch.cat((self._grown(seen2, "nearest"), seen1), 1)
        up, _ = self.up(joined, seen3)
        up = functional.leaky_relu(up, how.leak)
        return self.out(self.last(torch.cat((up, x * seen), 1))).tanh()

    def _grown(self, x, way=None):
        """x, twice as large."""
        way = way or self.how.grows
        if way == "bilinear":
            return functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")
