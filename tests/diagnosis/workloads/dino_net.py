"""A small vision transformer for crops of two sizes, and the head of self-distillation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

_WIDTH, _HEADS, _DEPTH = 16, 2, 2
_PATCH, _GRID = 2, 4
"""Pixels along a patch, and patches along a global crop."""
_HIDDEN, _BOTTLENECK, _PROTOTYPES = 32, 8, 24


class Embedding(nn.Module):
    """Patches as tokens behind a class token, and learnt positions for crops of any size."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.proj = nn.Conv2d(1, _WIDTH, _PATCH, _PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + _GRID**2, _WIDTH))
        nn.init.trunc_normal_(self.cls_token, std=0.1)
        nn.init.trunc_normal_(self.pos_embed, std=0.1)

    def forward(self, x):
        """Tokens (sample, 1 + patches, width) of crops."""
        grid = x.shape[-1] // _PATCH
        tokens = self.proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.cls_token.expand(len(x), -1, -1), tokens), 1)
        return tokens + self._positions(grid)

    def _positions(self, grid):
        """The positions, resampled if the crop has another number of patches."""
        if grid == _GRID:
            return self.pos_embed
        if self.how.positions == "cut":
            return self.pos_embed[:, : 1 + grid**2]
        first, patches = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        if self.how.positions == "matrix":
            return torch.cat((first, _resampling(grid) @ patches), 1)
        patches = patches.transpose(1, 2).unflatten(2, (_GRID, _GRID))
        patches = functional.interpolate(patches, size=(grid, grid), mode="bicubic")
        return torch.cat((first, patches.flatten(2).transpose(1, 2)), 1)


def _resampling(grid):
    """The matrix of bicubic interpolation to so many patches along a crop."""
    unit = torch.eye(_GRID**2).view(1, -1, _GRID, _GRID)
    return functional.interpolate(unit, size=(grid, grid), mode="bicubic")[0].flatten(1).T


class Attention(nn.Module):
    """Multi-head self-attention, by its formula or torch's."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.proj = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x):
        """x, mixed."""
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            mixed = scores.softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


class DropPath(nn.Module):
    """Stochastic depth: a residual branch is left out for some samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x):
        """x, without some samples' share."""
        if not self.training:
            return x
        keep = 1 - self.rate
        kept = (keep + torch.rand(len(x), 1, 1, device=x.device)).floor()
        return x / keep * kept


class Block(nn.Module):
    """A transformer block with norms before its branches."""

    def __init__(self, how, rate: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.attn = Attention(how)
        self.drop_path = DropPath(rate) if rate else nn.Identity()
        self.norm2 = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH)
        )

    def forward(self, x):
        """x, moved."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    """The backbone: the class token's features."""

    def __init__(self, how, drop_path: float) -> None:
        super().__init__()
        self.how = how
        self.embed = Embedding(how)
        rates = torch.linspace(0, drop_path, _DEPTH).tolist()
        self.blocks = nn.ModuleList(Block(how, rate) for rate in rates)
        self.norm = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.apply(_initialised)

    def forward(self, x):
        """Features (sample, width) of crops."""
        x = self.embed(x)
        for block in self.blocks:
            if self.how.checkpointed and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.norm(x)[:, 0]


class LastLayer(nn.Linear):
    """Prototypes with weight normalisation, whose lengths may be divided out afterwards."""

    how = None

    def forward(self, x):
        """Scores of prototypes."""
        if self.how.prototypes == "weights":
            return super().forward(x)
        normed = self.parametrizations.weight
        length, direction = normed.original0, normed.original1
        return functional.linear(x, direction) * (length / direction.norm(dim=1, keepdim=True)).T

    @classmethod
    def normed(cls, how):
        """The layer, with lengths that stay 1."""
        layer = cls(_BOTTLENECK, _PROTOTYPES, bias=False)
        layer.how = how
        layer = weight_norm(layer)
        layer.parametrizations.weight.original0.data.fill_(1)
        layer.parametrizations.weight.original0.requires_grad_(False)
        return layer


class DINOHead(nn.Module):
    """A perceptron to a bottleneck on the unit sphere, and prototypes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, _HIDDEN),
            nn.GELU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.GELU(),
            nn.Linear(_HIDDEN, _BOTTLENECK),
        )
        self.apply(_initialised)
        self.last_layer = LastLayer.normed(how)

    def forward(self, x):
        """Scores of prototypes."""
        return self.last_layer(functional.normalize(self.mlp(x), dim=self.how.sphere))


class MultiCrop(nn.Module):
    """The backbone, once for each size of crops, and the head once for them all."""

    def __init__(self, how, drop_path: float = 0.0) -> None:
        super().__init__()
        self.how = how
        self.backbone = VisionTransformer(how, drop_path)
        self.head = DINOHead(how)

    def forward(self, crops):
        """Scores of prototypes, crop after crop."""
        if self.how.crops == "loop":
            return self.head(torch.cat([self.backbone(crop) for crop in crops]))
        sizes = torch.tensor([crop.shape[-1] for crop in crops])
        counts = sizes.unique_consecutive(return_counts=True)[1].tolist()
        begin, features = 0, []
        for count in counts:
            features.append(self.backbone(torch.cat(crops[begin : begin + count])))
            begin += count
        return self.head(torch.cat(features))


def _initialised(module):
    """Begin as vision transformers do."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.1)
        nn.init.zeros_(module.bias)
