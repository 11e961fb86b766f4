"""A small diffusion-style U-Net: a convolutional net of many small tensors.

Residual blocks that are told the time, on the way down and, with what was kept there, on the way
up; GroupNorm, SiLU and the embedding are modules of their own, as diffusion code has them.
"""

from __future__ import annotations

import math

import torch
from torch import nn

__all__ = ["UNet"]

GROUPS = 8


class TimeEmbedding(nn.Module):
    """Sines of the time (batch) at several frequencies: (batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, time: torch.Tensor) -> torch.Tensor:
        """Half of them sines, half cosines."""
        half = self.width // 2
        angles = time[:, None] * torch.exp(torch.arange(half) * (-math.log(1e4) / half))
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class ResidualBlock(nn.Module):
    """Two convolutions around which the input is led, the time added between them."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.act1 = nn.GroupNorm(GROUPS, channels), nn.SiLU()
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.act_time, self.time = nn.SiLU(), nn.Linear(time, out)
        self.norm2, self.act2 = nn.GroupNorm(GROUPS, out), nn.SiLU()
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.around = nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """The same height and width."""
        h = self.conv1(self.act1(self.norm1(x)))
        h = h + self.time(self.act_time(time))[:, :, None, None]
        changed: torch.Tensor = self.conv2(self.act2(self.norm2(h))) + self.around(x)
        return changed


class UNet(nn.Module):
    """Noise predicted from noisy images (batch, 3, side, side) and their times (batch)."""

    def __init__(self, base: int = 32, levels: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        time, widths = 4 * base, [base * level for level in levels]
        self.time = nn.Sequential(
            TimeEmbedding(base), nn.Linear(base, time), nn.SiLU(), nn.Linear(time, time)
        )
        self.enter = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        now = base
        for width in widths:
            blocks = [ResidualBlock(now, width, time), ResidualBlock(width, width, time)]
            self.down.append(nn.ModuleList(blocks))
            self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            now = width
        self.middle = ResidualBlock(now, now, time)
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        for width in reversed(widths):
            self.grow.append(nn.Upsample(scale_factor=2.0))
            blocks = [ResidualBlock(now + width, width, time), ResidualBlock(width, width, time)]
            self.up.append(nn.ModuleList(blocks))
            now = width
        self.norm, self.act = nn.GroupNorm(GROUPS, now), nn.SiLU()
        self.leave = nn.Conv2d(now, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """The noise."""
        told, x, kept = self.time(time), self.enter(x), []
        for blocks, shrink in zip(self.down, self.shrink, strict=True):
            x = through(blocks, x, told)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, told)
        for blocks, grow in zip(self.up, self.grow, strict=True):
            x = through(blocks, torch.cat([grow(x), kept.pop()], dim=1), told)
        noise: torch.Tensor = self.leave(self.act(self.norm(x)))
        return noise


def through(blocks: nn.Module, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    """The blocks of one level, one after the other."""
    for block in blocks.children():
        x = block(x, time)
    return x
