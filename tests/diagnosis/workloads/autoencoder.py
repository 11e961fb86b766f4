"""A causal autoencoder of signals: dilated convolutions with weight norm, strides, and Snakes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

_WIDTHS = (6, 8, 12)
_CODE = 4


class Sized(nn.Module):
    """A weight as its size and its direction, written out."""

    def forward(self, size: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        """The weight."""
        return direction * (size / direction.square().sum((1, 2), keepdim=True).sqrt())

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the weight is made of."""
        return torch.norm_except_dim(weight, 2, 0), weight


def normed(of: Any, layer: nn.Module) -> nn.Module:
    """A layer with weight norm."""
    if of.weights == "torch":
        return weight_norm(layer, dim=of.norm_dim)
    parametrize.register_parametrization(layer, "weight", Sized(), unsafe=True)
    return layer


class Conv(nn.Conv1d):
    """A convolution of one axis, one of several ways to compute it."""

    way = "torch"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        if self.way == "planes":
            weight, stride, spread = self.weight[:, :, None], (1, *self.stride), (1, *self.dilation)
            return functional.conv2d(x[:, :, None], weight, self.bias, stride, 0, spread)[:, :, 0]
        if self.way == "patches":
            (size,), (step,), (spread,) = self.kernel_size, self.stride, self.dilation
            patches = x.unfold(-1, spread * (size - 1) + 1, step)[..., ::spread]
            return torch.einsum("bctk,ock->bot", patches, self.weight) + self.bias[:, None]
        return super().forward(x)


class Causal(nn.Module):
    """A convolution that sees nothing later."""

    def __init__(self, of: Any, inner: int, outer: int, size: int, spread: int = 1, step: int = 1):
        super().__init__()
        layer = Conv(inner, outer, size, step, dilation=spread)
        layer.way = of.convolution
        self.conv = normed(of, layer)
        before = (size - 1) * spread - (step - 1)
        after = before // 2 if of.pads == "both" else 0
        self.pads = before - after, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve what is padded before."""
        return self.conv(functional.pad(x, self.pads))


class Up(nn.Module):
    """A signal of twice the length."""

    def __init__(self, of: Any, inner: int, outer: int) -> None:
        super().__init__()
        self.of = of
        self.conv = normed(of, nn.ConvTranspose1d(inner, outer, 4, stride=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Enlarge, and cut off what would be later than the signal."""
        if self.of.rises == "torch":
            told = self.conv(x)
            return told[..., :-2] if self.of.trims == "end" else told[..., 2:]
        spaced = torch.stack((x, torch.zeros_like(x)), -1).flatten(2)
        weight = self.conv.weight.flip(2).transpose(0, 1)
        return functional.conv1d(functional.pad(spaced, (3, 0)), weight, self.conv.bias)


class Bend(nn.Module):
    """A Snake, which has a learnt frequency for each channel, or ELU."""

    def __init__(self, of: Any, width: int) -> None:
        super().__init__()
        self.of = of
        self.rate = nn.Parameter(torch.linspace(0.5, 2, width).view(1, -1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Bend."""
        if self.of.bends == "elu":
            return functional.elu(x)
        if self.of.snake == "cosine":
            wave = (1 - torch.cos(2 * self.rate * x)) / 2
        else:
            wave = torch.sin(self.rate * x)
            wave = wave.square() if self.of.squares else wave
        if self.of.divides == "rate":
            return x + wave / (self.rate + 1e-9)
        if self.of.divides == "reciprocal":
            return x + (self.rate + 1e-9).reciprocal() * wave
        return x + wave


class Block(nn.Module):
    """Two convolutions, the first dilated, added to what they read."""

    def __init__(self, of: Any, width: int, spread: int) -> None:
        super().__init__()
        self.of = of
        self.bend1, self.bend2 = Bend(of, width), Bend(of, width)
        self.wide = Causal(of, width, width, 3, spread if of.spreads else 1)
        self.point = Causal(of, width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve and add."""
        told = self.point(self.bend2(self.wide(self.bend1(x))))
        return x + told if self.of.adds else told


class Codec(nn.Module):
    """A signal (batch, 1, time) through a code of a quarter of its length."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        small, middle, large = _WIDTHS
        self.of = of
        self.encoder = nn.Sequential(
            Causal(of, 1, small, 5),
            Block(of, small, 3),
            Causal(of, small, middle, 4, step=2),
            Block(of, middle, 2),
            Causal(of, middle, large, 4, step=2),
            Bend(of, large),
            Causal(of, large, _CODE, 3),
        )
        self.decoder = nn.Sequential(
            Causal(of, _CODE, large, 3),
            Up(of, large, middle),
            Block(of, middle, 2),
            Up(of, middle, small),
            Block(of, small, 3),
            Bend(of, small),
            Causal(of, small, 1, 5),
        )

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Encode and decode."""
        code = self.encoder(signals)
        told = self.decoder(code)
        return torch.tanh(told) if self.of.bounds else told
