"""The detector's model: a backbone, a pyramid of two levels, and heads that both levels share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CLASSES, _CHANNELS = 10, 16


class Conv(nn.Conv2d):
    """A convolution, torch's or as a product of weights and patches."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "torch":
            return super().forward(x)
        if self.way == "einsum" and self.kernel_size == (1, 1):
            return torch.einsum("oi,nihw->nohw", self.weight[:, :, 0, 0], x) + self.bias.view(
                -1, 1, 1
            )
        high, wide = ((side - 1) // self.stride[0] + 1 for side in x.shape[2:])
        patches = functional.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)
        out = self.weight.flatten(1) @ patches
        out = out if self.bias is None else out + self.bias[:, None]
        return out.unflatten(2, (high, wide))


class BatchNorm(nn.BatchNorm2d):
    """A batch norm, torch's or as one product and one sum."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch" or not self.training:
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
            self.num_batches_tracked.add_(1)
        factor = self.weight / (spread + self.eps).sqrt()
        shift = self.bias - mean * factor
        return (wide * factor[:, None, None] + shift[:, None, None]).to(x.dtype)


class GroupNorm(nn.GroupNorm):
    """A group norm, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        parts = x.to(self.weight.dtype).unflatten(1, (self.num_groups, -1))
        missed = parts - parts.mean((2, 3, 4), keepdim=True)
        spread = missed.square().mean((2, 3, 4), keepdim=True)
        normed = (missed * (spread + self.eps).rsqrt()).flatten(1, 2)
        return (normed * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


class Backbone(nn.Module):
    """Three convolutions that halve what they are given; the last two results."""

    def __init__(self, how) -> None:
        super().__init__()
        wide = (1, 8, _CHANNELS, _CHANNELS)
        self.convs = nn.ModuleList(
            Conv(wide[at], wide[at + 1], 3, 2, 1, bias=False) for at in range(3)
        )
        self.norms = nn.ModuleList(BatchNorm(wide[at], eps=how.bn_eps) for at in (1, 2, 3))
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(3))

    def forward(self, x):
        """The levels of strides 4 and 8."""
        levels = []
        for conv, norm, act in zip(self.convs, self.norms, self.acts, strict=True):
            x = act(norm(conv(x)))
            levels.append(x)
        return levels[1], levels[2]


class Heads(nn.Module):
    """What is told of a level: names and boxes of the anchors in each of its cells."""

    def __init__(self, how) -> None:
        super().__init__()
        self.tower, self.norm = Conv(_CHANNELS, _CHANNELS, 3, 1, 1), GroupNorm(how.groups, 16)
        self.act = nn.ReLU()
        self.name, self.box = Conv(_CHANNELS, 2 * CLASSES, 3, 1, 1), Conv(_CHANNELS, 8, 3, 1, 1)
        nn.init.constant_(self.name.bias, -2.0)

    def forward(self, x):
        """Logits and offsets, still as channels."""
        x = self.act(self.norm(self.tower(x)))
        return self.name(x), self.box(x)


class Net(nn.Module):
    """A backbone, a pyramid of two levels, and heads that both levels share."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.backbone = Backbone(how)
        self.lateral1, self.lateral2 = (Conv(_CHANNELS, _CHANNELS, 1) for _ in range(2))
        self.smooth, self.heads = Conv(_CHANNELS, _CHANNELS, 3, 1, 1), Heads(how)
        self.scales = nn.Parameter(torch.tensor([1.1, 0.9]))
        ways = {Conv: how.convolution, BatchNorm: how.norming, GroupNorm: how.grouping}
        for module in self.modules():
            if type(module) in ways:
                module.way = ways[type(module)]
        if how.lateral != "torch":
            self.lateral1.way = self.lateral2.way = how.lateral

    def forward(self, x):
        """Logits (scene, anchor, class) and offsets (scene, anchor, 4) of all anchors."""
        how = self.how
        below, above = self.backbone(x)
        above = self.lateral2(above)
        larger = functional.interpolate(
            above.detach() if how.adds == "detached" else above,
            scale_factor=2,
            mode=how.upsample,
        )
        below = self.lateral1(below)
        below = self.smooth(below if how.adds == "nothing" else below + larger)
        told = []
        for at, level in enumerate((below, above)):
            names, boxes = self.heads(level)
            boxes = boxes * self.scales[at] if at < how.scaled else boxes
            told.append((self._flat(names, CLASSES), self._flat(boxes, 4)))
        return tuple(torch.cat(parts, 1) for parts in zip(*told, strict=True))

    def _flat(self, x, size):
        x = x.permute(0, 2, 3, 1) if self.how.lies else x
        return x.reshape(len(x), -1, size)
