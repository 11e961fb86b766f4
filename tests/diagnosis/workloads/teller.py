"""An autoregressive net over tokens: causal attention, norms by root mean square, a gated layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

TOKENS = 6
PLACES = 20
_WIDTH, _HEADS, _EPS = 16, 2, 1e-6


class Norm(nn.Module):
    """Division by the root of the mean square."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm."""
        if self.of.norming == "torch":
            return functional.rms_norm(x, (_WIDTH,), self.weight, _EPS)
        return x / (x.square().mean(-1, keepdim=True) + _EPS).sqrt() * self.weight


class Attention(nn.Module):
    """Each place sees itself and those before it."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of
        self.query, self.key, self.value = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in "qkv")
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        layers = (self.query, self.key, self.value)
        if self.of.packing == "apart":
            parts = [layer(x) for layer in layers]
        else:
            weight = torch.cat([layer.weight for layer in layers])
            parts = functional.linear(x, weight).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        if self.of.attention == "torch":
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
            if self.of.causal:
                later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(later, -math.inf)
            mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A layer whose one half is gated by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(_WIDTH, 2 * _WIDTH, bias=False) for _ in "gu")
        self.down = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gate."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a gated layer, each added to what it reads."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(of), Norm(of)
        self.attention, self.gated = Attention(of), Gated()
        self.drop1, self.drop2 = nn.Dropout(of.dropout), nn.Dropout(of.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix places, then channels."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.gated(self.norm2(x)))


class Teller(nn.Module):
    """Logits of the token behind each place."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of
        self.tokens, self.places = nn.Embedding(TOKENS, _WIDTH), nn.Embedding(PLACES, _WIDTH)
        self.blocks = nn.ModuleList(Block(of) for _ in range(2))
        self.norm = Norm(of)
        self.head = nn.Linear(_WIDTH, TOKENS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tell."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
