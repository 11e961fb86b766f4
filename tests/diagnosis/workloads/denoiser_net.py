"""A small denoiser: DnCNN's blocks inside a U-Net that is told how noisy each image is."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

_WIDTH, _DEEP = 8, 16


class Conv(nn.Conv2d):
    """A 3 × 3 convolution of an image that is reflected at its borders."""

    def __init__(self, how, into: int, out: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__(into, out, 3, stride, padding=1, bias=bias, padding_mode="reflect")
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.borders == "conv":
            return super().forward(x)
        return self._padded(x, self.weight, self.bias)

    def _padded(self, x, weight, bias=None):
        x = functional.pad(x, (1, 1, 1, 1), mode="reflect")
        return functional.conv2d(x, weight, bias, self.stride)


class Fuse(Conv):
    """A convolution of two stacks of channels, which are joined or not."""

    def forward(self, x, skip):
        """The convolution of both."""
        if self.how.joins == "cat":
            return super().forward(torch.cat((x, skip), 1))
        count = x.shape[1]
        own, other = self.weight.split((count, skip.shape[1]), 1)
        return self._padded(x, own) + self._padded(skip, other)


class Up(nn.ConvTranspose2d):
    """Images twice as large, by a transposed convolution or by a shuffle of channels."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 2, stride=2, bias=False)
        self.how = how

    def forward(self, x):
        """x, enlarged."""
        if self.how.enlarges == "transposed":
            return super().forward(x)
        weight = self.weight.permute(1, 2, 3, 0).reshape(-1, self.in_channels, 1, 1)
        return functional.pixel_shuffle(functional.conv2d(x, weight), 2)


class LayerNorm(nn.LayerNorm):
    """A norm over the channels of each pixel."""

    def forward(self, x):
        """x (image, channel, row, column), normed."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A convolution, a norm and a ReLU."""

    def __init__(self, how, conv: nn.Module, channels: int) -> None:
        super().__init__()
        kind = nn.BatchNorm2d if how.norm == "batch" else LayerNorm
        self.conv, self.norm, self.act = conv, kind(channels), nn.ReLU()

    def forward(self, *x):
        """The block's channels."""
        return self.act(self.norm(self.conv(*x)))


class Denoiser(nn.Module):
    """Images less the noise that the net sees in them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.head, self.act = Conv(how, 2, _WIDTH, bias=True), nn.ReLU()
        self.down = Block(how, Conv(how, _WIDTH, _DEEP, stride=2), _DEEP)
        self.body = nn.ModuleList(Block(how, Conv(how, _DEEP, _DEEP), _DEEP) for _ in range(2))
        self.up = Up(how, _DEEP, _WIDTH)
        self.fuse = Block(how, Fuse(how, 2 * _WIDTH, _WIDTH), _WIDTH)
        self.tail = Conv(how, _WIDTH, 1, bias=True)

    def forward(self, noisy, levels):
        """Images (image, 1, row, column) of known noise levels (image), restored."""
        levels = levels if self.how.maps == "width" else levels.view(-1, 1, 1, 1)
        first = self.head(torch.cat((noisy, levels.expand_as(noisy)), 1))
        x = skip = self.act(first)
        x = self.down(x)
        for block in self.body:
            x = block(x)
        x = self.fuse(self.up(x), skip if self.how.skips == "active" else first)
        restored = noisy - self.tail(x)
        return restored.clamp(0, 1) if self.how.clamps else restored


class Average:
    """A moving average of a model's parameters, with the model's latest buffers."""

    def __init__(self, how, model: nn.Module) -> None:
        self.how = how
        self.module = copy.deepcopy(model)
        self.count = 0

    @torch.no_grad()
    def update_parameters(self, model):
        """Take the model's parameters in; the first ones are taken as they are."""
        decay = self.how.decay if self.count else 0.0
        self.count += 1
        for mean, one in zip(self.module.parameters(), model.parameters(), strict=True):
            mean.mul_(decay).add_(one, alpha=1 - decay)
        if self.how.buffers == "latest":
            for old, new in zip(self.module.buffers(), model.buffers(), strict=True):
                old.copy_(new)
