"""The model of patches that are mixed: layers along places, and layers along channels."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_PLACES, _CHANNELS, _NARROW, _WIDE, _PATCH = 16, 16, 8, 24, 2


class Patches(nn.Conv2d):
    """A token for each patch of 2 × 2 pixels, by torch's convolution or as a product."""

    def __init__(self, how) -> None:
        super().__init__(1, _CHANNELS, _PATCH, stride=_PATCH)
        self.how = how

    def forward(self, x):
        """Tokens (image, place, channel)."""
        if self.how.patching == "torch":
            return super().forward(x).flatten(2).transpose(1, 2)
        patches = functional.unfold(x, _PATCH, stride=_PATCH).transpose(1, 2)
        return functional.linear(patches, self.weight.flatten(1), self.bias)


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        spread, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class Along(nn.Linear):
    """A linear layer along places: (image, place, channel) to (image, number, channel)."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out)
        self.how = how

    def forward(self, x):
        """x, mixed."""
        if self.how.mixes == "channels":
            return super().forward(x)
        if self.how.along == "einsum":
            return torch.einsum("npc,op->noc", x, self.weight) + self.bias[:, None]
        if self.how.along == "convolution":
            return functional.conv1d(x, self.weight[:, :, None], self.bias)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Act(nn.Module):
    """GELU."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        if self.how.gelu == "erf":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        return functional.gelu(x, approximate=self.how.gelu)


class Scale(nn.Module):
    """A learnt factor for each channel."""

    def __init__(self, how) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((_CHANNELS,), how.gamma))

    def forward(self, x):
        """x, made smaller."""
        return x * self.gamma


class Path(nn.Module):
    """Stochastic depth: leaves a branch out for some samples while the model trains."""

    def __init__(self, how, rate: float, draws: torch.Generator) -> None:
        super().__init__()
        self.how, self.rate, self.draws = how, rate, draws

    def forward(self, x):
        """x, or nothing."""
        if not self.training:
            return x
        count = len(x) if self.how.apart else 1
        drawn = torch.rand(count, 1, 1, generator=self.draws)
        drawn = drawn.flip(0) if self.how.turned else drawn
        kept = (drawn >= self.rate).to(x.dtype)
        if self.how.path == "weights":
            return x * (kept / (1 - self.rate))
        return x * kept / (1 - self.rate) if self.how.grows else x * kept


class Block(nn.Module):
    """Layers along places and along channels, each added to what it was given."""

    def __init__(self, how, rate: float, draws: torch.Generator) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.gather, self.spread = Along(how, _PLACES, _NARROW), Along(how, _NARROW, _PLACES)
        self.up, self.down = nn.Linear(_CHANNELS, _WIDE), nn.Linear(_WIDE, _CHANNELS)
        self.act1, self.act2 = Act(how), Act(how)
        self.scale1, self.scale2 = Scale(how), Scale(how)
        self.path1, self.path2 = Path(how, rate, draws), Path(how, rate, draws)

    def forward(self, x):
        """x, moved."""
        mixed = self.spread(self.act1(self.gather(self.norm1(x))))
        x = x + self.path1(self.scale1(mixed))
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            moved = self._channels(x)
        else:
            moved = checkpoint(self._channels, x, use_reentrant=False)
        return x + self.path2(self.scale2(moved))

    def _channels(self, x):
        return self.down(self.act2(self.up(self.norm2(x))))


class Mixer(nn.Module):
    """Logits of images."""

    def __init__(self, how, seed: int) -> None:
        super().__init__()
        self.how = how
        draws = torch.Generator().manual_seed(seed)
        self.patches = Patches(how)
        self.blocks = nn.ModuleList(Block(how, rate, draws) for rate in how.rates)
        self.norm, self.head = Norm(how), nn.Linear(_CHANNELS, 10)

    def forward(self, x):
        """Logits (image, class) of images (image, 1, 8, 8)."""
        x = self.patches(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if self.how.pool == "sum":
            return self.head(x.sum(1) / _PLACES)
        if self.how.pool == "product":
            shares = torch.full((_PLACES,), 1 / _PLACES, dtype=x.dtype)
            return self.head(shares @ x)
        return self.head(x.mean(1 if self.how.pool == "places" else 2))
