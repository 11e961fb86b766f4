"""A causal transformer over prompts that are padded on the left, and what follows them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

_WIDTH, _HEADS, _WIDE, _PLACES = 16, 2, 32, 12


class Norm(nn.RMSNorm):
    """A norm by the root of the mean square, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        length = x.square().mean(-1, keepdim=True) + self.eps
        return x / length.sqrt() * self.weight


class Attention(nn.Module):
    """Attention to what came before."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))

    def forward(self, x, seen):
        """x, mixed; seen: which token sees which (sequence, 1, token, token)."""
        q, k, v = (
            layer(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
            mixed = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.attention = Attention(how)
        self.up, self.act, self.down = nn.Linear(_WIDTH, _WIDE), nn.GELU(), nn.Linear(_WIDE, _WIDTH)

    def forward(self, x, seen):
        """x, moved."""
        x = x + self.attention(self.norm1(x), seen)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Causal(nn.Module):
    """Logits of the token that follows each token."""

    def __init__(self, how, tokens: int) -> None:
        super().__init__()
        self.how = how
        self.tokens, self.places = nn.Embedding(tokens, _WIDTH), nn.Embedding(_PLACES, _WIDTH)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm, self.head = Norm(how), nn.Linear(_WIDTH, tokens, bias=False)

    def forward(self, tokens, there):
        """Logits (sequence, token, name) of tokens; those that are not there are padding."""
        count = tokens.shape[1]
        places = there.long().cumsum(1) - 1
        if self.how.places == "all":
            places = torch.arange(count).expand_as(tokens)
        x = self.tokens(tokens) + self.places(places.clamp(min=0))
        before = torch.ones(count, count, dtype=torch.bool).tril()
        seen = before & there[:, None, None] if self.how.hides else before.expand(len(x), 1, -1, -1)
        seen = seen | torch.eye(count, dtype=torch.bool)
        for block in self.blocks:
            x = block(x, seen)
        return self.head(self.norm(x))
