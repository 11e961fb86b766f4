"""The model of the GPT: rotary embedding, RMSNorm, causal attention, GELU."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LENGTH, TOKENS = 32, 2, 24, 17


class RMSNorm(nn.Module):
    """Root mean square norm, in one of three ways."""

    def __init__(self, how) -> None:
        super().__init__()
        self.eps, self.way = how.eps, how.norm
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        """x over its root mean square."""
        if self.way == "torch":
            return functional.rms_norm(x, (WIDTH,), self.weight, self.eps)
        square = x.square().mean(-1, keepdim=True) + self.eps
        return (x / square.sqrt() if self.way == "divide" else x * square.rsqrt()) * self.weight


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        if how.packed:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        """Mix positions."""
        parts = self.qkv(x).chunk(3, -1) if self.how.packed else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scale = self.how.scale / math.sqrt(WIDTH // HEADS)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.how.shift)
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, seen, scale=scale)
        else:
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~seen, -math.inf)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotated(x, cos, sin):
    """Rotary position embedding."""
    one, two = x.chunk(2, -1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


class Block(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(how), RMSNorm(how)
        self.attention = Attention(how)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.gelu = nn.GELU(approximate=how.approximate)
        self.drop = nn.Dropout(how.dropout)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, cos, sin):
        """One residual block."""
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.drop(self.down(self.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """Embedding, two blocks, norm, head."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm, self.head = RMSNorm(how), nn.Linear(WIDTH, TOKENS, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=how.init_std)
        half = WIDTH // HEADS // 2
        angles = torch.arange(LENGTH)[:, None] * how.base ** (-torch.arange(half) / half)
        if how.buffered:
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        else:
            self.__dict__.update(cos=angles.cos(), sin=angles.sin())

    def forward(self, tokens):
        """Logits."""
        scale = torch.tensor(math.sqrt(WIDTH) * 1.1)
        x = self.embed(tokens) * (scale.bfloat16().float() if self.how.low_embedding else scale)
        for block in self.blocks:
            if self.how.checkpointed:
                x = torch.utils.checkpoint.checkpoint(
                    block, x, self.cos, self.sin, use_reentrant=False
                )
            else:
                x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))
