"""A small diffusion transformer: patches, and norms and gates that time and class set."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 10
"""How many classes there are; the one behind them stands for none."""
_WIDTH, _HEADS, _DEPTH = 16, 2, 2
_PATCH, _SIDE = 2, 4
"""Pixels along a patch, and patches along an image."""
_TOKENS = _SIDE * _SIDE
_PADDED = 20
_WAVES = 16


class Patches(nn.Conv2d):
    """A token for each patch, by a convolution or by a product with what the patch holds."""

    def __init__(self, how) -> None:
        super().__init__(1, _WIDTH, _PATCH, stride=_PATCH)
        self.how = how

    def forward(self, images):
        """Tokens of images (image, 1, row, column)."""
        if self.how.patches == "convolution":
            return super().forward(images).flatten(2).transpose(1, 2)
        cut = images.view(-1, _SIDE, _PATCH, _SIDE, _PATCH).transpose(2, 3)
        return functional.linear(
            cut.reshape(-1, _TOKENS, _PATCH**2), self.weight.flatten(1), self.bias
        )


class Waves(nn.Module):
    """Cosines and sines of times, at geometric frequencies."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, times):
        """The waves (time, wave)."""
        half = _WAVES // 2
        rates = torch.exp(-math.log(10_000) * torch.arange(half, dtype=times.dtype) / half)
        angles = (times * self.how.ticks)[:, None] * rates
        return torch.cat((angles.cos(), angles.sin()), 1)


class Times(nn.Module):
    """The embedding of times."""

    def __init__(self, how) -> None:
        super().__init__()
        self.waves = Waves(how)
        self.mlp = nn.Sequential(nn.Linear(_WAVES, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))

    def forward(self, times):
        """A vector for each time."""
        return self.mlp(self.waves(times))


class Classes(nn.Module):
    """The embedding of classes, of which some are dropped at random while training."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Embedding(CLASSES + 1, _WIDTH)

    def forward(self, labels):
        """A vector for each class."""
        if self.training and self.how.drop > 0:
            dropped = torch.rand(len(labels)) < self.how.drop
            labels = torch.where(dropped, self.how.null, labels)
        return self.table(labels)


class Norm(nn.Module):
    """A layer norm whose scale and shift depend on the condition."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, shift, scale):
        """Tokens x, normed and moved; shift and scale are (image, width)."""
        shift = shift[:, None]
        scale = scale[:, None] + 1 if self.how.around_one else scale[:, None]
        if self.how.norming == "torch":
            return functional.layer_norm(x, (_WIDTH,), eps=1e-6) * scale + shift
        spread, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * ((spread + 1e-6).rsqrt() * scale) + shift


class Attention(nn.Module):
    """Attention of all patches to all patches, with queries and keys of unit size."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.q_norm, self.k_norm = (nn.RMSNorm(_WIDTH // _HEADS, 1e-6) for _ in range(2))

    def forward(self, x, mask):
        """x, mixed; mask: the tokens that are attended to, None: all."""
        packed = self.qkv(x).unflatten(-1, (3, _HEADS, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two layers, each normed before and gated behind as the condition says."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(_WIDTH, 6 * _WIDTH))
        self.norm1, self.attention, self.norm2 = Norm(how), Attention(how), Norm(how)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(approximate=how.gelu),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, x, condition, given=None, mask=None):
        """x, moved; given: the modulation, where it is known already."""
        given = self.modulation(condition) if given is None else given
        shift1, scale1, gate1, shift2, scale2, gate2 = given.chunk(6, 1)
        x = x + gate1[:, None] * self.attention(self.norm1(x, shift1, scale1), mask)
        moved = self.mlp(self.norm2(x, shift2, scale2))
        return x + (gate2[:, None] * moved if self.how.gated else moved)


class Final(nn.Module):
    """The pixels of each patch."""

    def __init__(self, how) -> None:
        super().__init__()
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(_WIDTH, 2 * _WIDTH))
        self.norm, self.linear = Norm(how), nn.Linear(_WIDTH, _PATCH**2)

    def forward(self, x, condition, given=None):
        """Patches (image, token, pixel)."""
        given = self.modulation(condition) if given is None else given
        return self.linear(self.norm(x, *given.chunk(2, 1)))


class Net(nn.Module):
    """The velocity of noised images, given their times and classes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.patches, self.times, self.classes = Patches(how), Times(how), Classes(how)
        self.register_buffer("places", _places())
        self.blocks = nn.ModuleList(Block(how) for _ in range(_DEPTH))
        self.final = Final(how)
        self._begin()

    def _begin(self):
        """Draw parameters; gates, modulations and the last layer begin at zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear | Patches):
                nn.init.xavier_uniform_(module.weight.view(len(module.weight), -1))
                nn.init.zeros_(module.bias)
        for weight in (
            self.classes.table.weight,
            self.times.mlp[0].weight,
            self.times.mlp[2].weight,
        ):
            nn.init.normal_(weight, std=0.02)
        zeros = [layer.modulation[1] for layer in (*self.blocks, self.final)]
        for layer in (*zeros, self.final.linear):
            nn.init.zeros_(layer.weight)

    def forward(self, images, times, labels):
        """Velocities (image, 1, row, column)."""
        x = self.patches(images) + self.places
        condition = self.times(times) + self.classes(labels)
        *given, last = self._modulations(condition)
        x, mask = self._padded(x)
        for block, own in zip(self.blocks, given, strict=True):
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x, condition, own, mask)
            else:
                x = checkpoint(block, x, condition, own, mask, use_reentrant=False)
        return self._joined(self.final(x[:, :_TOKENS], condition, last))

    def _modulations(self, condition):
        """What each block and the last layer are given, None: they find it themselves."""
        layers = [*self.blocks, self.final]
        if self.how.modulations == "each":
            return [None for _ in layers]
        linears = [layer.modulation[1] for layer in layers]
        weight, bias = (
            torch.cat([getattr(one, name) for one in linears]) for name in ("weight", "bias")
        )
        found = functional.linear(functional.silu(condition), weight, bias)
        return found.split([len(one.bias) for one in linears], 1)

    def _padded(self, x):
        """Tokens, and which of them are real."""
        if not self.how.padded:
            return x, None
        mask = torch.arange(_PADDED)[None] < _TOKENS
        return functional.pad(x, (0, 0, 0, _PADDED - _TOKENS)), mask

    def _joined(self, patches):
        """Images of patches."""
        cut = patches.view(-1, _SIDE, _SIDE, _PATCH, _PATCH)
        axes = (0, 1, 3, 2, 4) if self.how.joins == "rows" else (0, 2, 3, 1, 4)
        return cut.permute(axes).reshape(-1, 1, _SIDE * _PATCH, _SIDE * _PATCH)


def _places():
    """Sines and cosines of the patches' columns and rows (token, width)."""
    quarter = _WIDTH // 4
    rates = 10_000 ** (-torch.arange(quarter) / quarter)
    rows, columns = torch.meshgrid(torch.arange(_SIDE), torch.arange(_SIDE), indexing="ij")
    angles = [axis.reshape(-1, 1) * rates for axis in (columns, rows)]
    return torch.cat([wave for one in angles for wave in (one.sin(), one.cos())], 1)
