"""A net that tells a mixture of poses for a point, and the arm whose tip should reach it."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LENGTHS = (3.0, 2.5, 1.0)
"""Of the arm's three links, in decimetres."""
LIMITS = ((0.0, math.pi), (-2.4, 2.4), (-1.6, 1.6))
"""The least and the largest angle of each joint."""
_MIXED, _WIDTH = 5, 24
_NARROWEST, _WIDEST = -2.0, 0.5
"""Between these the logarithms of standard deviations are clamped."""
_SURE = 3.0
"""Bound of the logarithms of the tips' variances."""


def tips(how, joints):
    """Where the tip stands; each joint turns all links behind it."""
    lengths = torch.tensor(LENGTHS, dtype=joints.dtype)
    if how.arm == "matrices":
        tip = joints.new_zeros(2)
        for length, angle in zip(lengths.flip(0), joints.flip(-1).unbind(-1), strict=True):
            cos, sin = angle.cos(), angle.sin()
            turn = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)
            tip = (turn @ (tip + torch.stack((length, length * 0)))[..., None])[..., 0]
        return tip
    angles = joints.cumsum(-1) if how.chained else joints
    return torch.stack((angles.cos() @ lengths, angles.sin() @ lengths), -1)


class Normalizer(nn.Module):
    """Inputs less their running mean, by their running spread, of all that was trained on."""

    def __init__(self, how, size: int) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        """x, of a known size; a batch that is trained on counts itself."""
        if self.training or not self.how.rests:
            self._update(x)
        return ((x - self.mean) / (self.var + 1e-6).sqrt()).clamp(-5, 5)

    @torch.no_grad()
    def _update(self, x):
        """Merge the batch's moments with those of all batches before."""
        var, mean = torch.var_mean(x, 0, correction=0)
        total = self.count + len(x)
        share = len(x) / total
        if self.how.moments == "merged":
            off = mean - self.mean
            both = self.var * (1 - share) + var * share + off.square() * share * (1 - share)
            merged = self.mean + off * share
        else:
            merged = (self.mean * self.count + mean * len(x)) / total
            before, now = self.var + self.mean.square(), var + mean.square()
            both = (before * self.count + now * len(x)) / total - merged.square()
        self.mean.copy_(merged)
        self.var.copy_(both)
        self.count.copy_(total)


class Block(nn.Module):
    """Two layers behind a norm, added to what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.act = nn.GELU()

    def forward(self, x):
        """x, moved."""
        return x + self.down(self.act(self.up(self.norm(x))))


class Head(nn.Module):
    """All that a mixture consists of, and how far off its tips may be."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        count = _MIXED * len(LENGTHS)
        self.logits, self.means = nn.Linear(_WIDTH, _MIXED), nn.Linear(_WIDTH, count)
        self.log_stds, self.log_vars = nn.Linear(_WIDTH, count), nn.Linear(_WIDTH, _MIXED)
        low, high = torch.tensor(LIMITS).T
        with torch.no_grad():  # components that begin apart do not collapse into one
            self.means.bias.copy_((low + (high - low) * torch.rand(_MIXED, len(low))).flatten())

    def forward(self, x):
        """Logits, means, logarithms of standard deviations, and those of the tips' variances."""
        parts = self.logits, self.means, self.log_stds, self.log_vars
        if self.how.heads == "apart":
            logits, means, stds, sure = (part(x) for part in parts)
        else:
            weight = torch.cat([part.weight for part in parts])
            told = functional.linear(x, weight, torch.cat([part.bias for part in parts]))
            logits, means, stds, sure = told.split([part.out_features for part in parts], 1)
        stds = stds.clamp(_NARROWEST, _WIDEST) if self.how.clamps else stds
        shape = _MIXED, len(LENGTHS)
        return logits, means.unflatten(1, shape), stds.unflatten(1, shape), sure.clamp(max=_SURE)


class Mixture(nn.Module):
    """The density of the joints' angles, given where the tip should be."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.normalizer = Normalizer(how, 2)
        self.stem = nn.Linear(2, _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = Head(how)

    def forward(self, x):
        """What the head tells of points (sample, 2)."""
        x = self.stem(self.normalizer(x))
        for block in self.blocks:
            if self.how.keeps == "edges" and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(functional.gelu(self.norm(x)))
