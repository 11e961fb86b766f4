"""A small convolutional net that takes noise away, and the scalings that bound it where none is."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib

_CHANNELS, _WIDTH = 8, 16


class Waves(nn.Module):
    """Sines and cosines of the logarithm of a noise level."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("rates", torch.logspace(0, 1, _WIDTH // 2))

    def forward(self, level):
        """Features (sample, width)."""
        told = 0.25 * level.log() if self.how.logs else 0.25 * level
        angles = told[:, None] * self.rates
        return torch.cat((angles.sin(), angles.cos()), 1)


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1)
        told = self.weight.flatten(1) @ patches + self.bias[:, None].to(patches.dtype)
        return told.unflatten(2, x.shape[2:])


class Block(nn.Module):
    """Two convolutions, between which a level scales and shifts, added to what was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, _CHANNELS, eps=how.norm_eps)
        self.conv1 = Conv(how, _CHANNELS, _CHANNELS)
        self.norm2 = nn.GroupNorm(4, _CHANNELS, eps=how.norm_eps)
        self.conv2 = Conv(how, _CHANNELS, _CHANNELS)
        self.film = nn.Linear(_WIDTH, 2 * _CHANNELS)

    def forward(self, x, features):
        """x, moved."""
        scale, shift = self.film(features)[:, :, None, None].chunk(2, 1)
        told = self.conv1(functional.silu(self.norm1(x)))
        told = self.norm2(told) * (1 + scale) + shift
        return x + self.conv2(functional.silu(told))


class Net(nn.Module):
    """The net behind the scalings: it is told an image of unit spread and a noise level."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.waves = Waves(how)
        self.embed = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.SiLU())
        self.names = nn.Embedding(10, _WIDTH)
        self.enter = Conv(how, 1, _CHANNELS)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm = nn.GroupNorm(4, _CHANNELS, eps=how.norm_eps)
        self.leave = Conv(how, _CHANNELS, 1)
        if how.spare:
            self.spare = nn.Identity()

    def forward(self, x, level, labels):
        """An image."""
        features = self.embed(self.waves(level)) + self.names(labels)
        x = self.enter(x)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x, features)
            else:
                x = checkpoint(block, x, features, use_reentrant=False)
        return self.leave(functional.silu(self.norm(x)))


class Denoiser(nn.Module):
    """Noisy images to clean ones; at the lowest level it gives back what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.inner = Net(how)

    def forward(self, x, level, labels):
        """The clean images, in one step."""
        how = self.how
        skip, out, into = self._scalings(level)
        anchorlib.anchor(skip, "skip_scale")
        anchorlib.anchor(out, "out_scale")
        skip, out, into = (one[:, None, None, None] for one in (skip, out, into))
        with torch.autocast("cpu", torch.bfloat16, enabled=how.low):
            told = self.inner(into * x, level, labels)
        return skip * x + out * told.to(x.dtype)

    def _scalings(self, level):
        """The factors of the noisy image, of what the net says, and of what it is given."""
        how, data = self.how, self.how.data
        above = level - how.lowest if how.bounded else level
        if how.scalings == "plain":
            skip = data**2 / (above**2 + data**2)
            out = above * data / (level**2 + data**2) ** 0.5
            return skip, out, 1 / (level**2 + data**2) ** 0.5
        into = torch.hypot(level, torch.full_like(level, data)).reciprocal()
        return 1 / (1 + (above / data).square()), data * above * into, into


class Consistency(nn.Module):
    """The net that learns and its average, which tells what the next lower level should give."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.net, self.target = Denoiser(how), Denoiser(how)
        self.target.load_state_dict(self.net.state_dict())
        self.target.requires_grad_(False)

    def forward(self, images, labels, noise, index, count: int):
        """The loss of images (sample, 1, 8, 8) between the levels `index` and one lower."""
        how = self.how
        level, lower = self._level(index, count), self._level(index + 1, count)
        anchorlib.anchor(level, "level")
        anchorlib.anchor(lower, "lower_level")
        noisy = images + level[:, None, None, None] * noise
        nearer = images + lower[:, None, None, None] * noise
        if how.passes == "joined":
            both = self.net(torch.cat((noisy, nearer)), torch.cat((level, lower)), labels.repeat(2))
            told, wanted = both.chunk(2)
            wanted = wanted.detach()
        else:
            told = self.net(noisy, level, labels)
            teacher = self.target if how.teacher == "average" else self.net
            with torch.set_grad_enabled(how.follows):
                wanted = teacher(nearer, lower, labels)
        anchorlib.anchor(wanted, "wanted")
        missed = anchorlib.anchor(self._missed(told - wanted), "missed")
        gap = level - lower
        weight = gap if how.weighs == "gap" else 1 / gap
        return (anchorlib.anchor(weight, "weight") * missed).mean()

    def _level(self, index, count: int):
        """Karras's noise levels: 0 is the highest one, count - 1 the lowest one."""
        how = self.how
        high, low = how.highest ** (1 / how.rho), how.lowest ** (1 / how.rho)
        root = high + index / (count - 1 if how.reaches else count) * (low - high)
        return root**how.rho if how.power == "power" else (how.rho * root.log()).exp()

    def _missed(self, error):
        """The pseudo-Huber loss of each sample."""
        how = self.how
        c = how.huber * math.sqrt(error[0].numel())
        if how.loss == "square":
            return error.square().flatten(1).sum(1)
        if how.axis == "pixel":
            return ((error.square() + c**2).sqrt() - c).flatten(1).sum(1)
        square = error.square().flatten(1).sum(1)
        if how.loss == "ratio":
            return square / ((square + c**2).sqrt() + c)
        return (square + c**2).sqrt() - c

    @torch.no_grad()
    def follow(self):
        """Let the average follow the net."""
        how = self.how
        for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
            if how.average == "lerp":
                slow.lerp_(fast, 1 - how.decay)
            else:
                slow.mul_(how.decay).add_(fast, alpha=1 - how.decay)
