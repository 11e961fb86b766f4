"""The model of a table's rows: each column is a token, and attention runs over them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _HEADS, _WIDE = 16, 4, 24
_SIZE = _WIDTH // _HEADS


class Standard(nn.Module):
    """Numbers less their columns' means, as multiples of their columns' spreads."""

    def __init__(self, how, known) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", known.mean(0))
        self.register_buffer("spread", known.std(0) + 1e-3)

    def forward(self, x):
        """x, of a known size."""
        x = x - self.mean
        return x / self.spread if self.how.divides else x


class Tokens(nn.Module):
    """A token for each number, one for each name, and one that the row is read from."""

    def __init__(self, how, numbers: int, sizes) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(numbers, _WIDTH) * 0.5)
        self.bias = nn.Parameter(torch.randn(numbers, _WIDTH) * 0.5)
        self.whole = nn.Parameter(torch.randn(_WIDTH) * 0.5)
        self.names = nn.Embedding(sum(sizes), _WIDTH)
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.starts = starts if how.apart else torch.zeros_like(starts)

    def forward(self, numbers, names):
        """The tokens of each row; the one for the whole comes first."""
        if self.how.tokens == "plain":
            numbers = numbers[..., None] * self.weight + self.bias
        else:
            numbers = torch.addcmul(self.bias, numbers[..., None], self.weight)
        whole = self.whole.expand(len(names), 1, _WIDTH)
        return torch.cat((whole, numbers, self.names(names + self.starts)), 1)


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        return (wide - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class Attention(nn.Module):
    """Attention of all columns to all columns."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x):
        """x, mixed."""
        how = self.how
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self._parts(x))
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            size = _SIZE if how.root == "head" else _WIDTH
            scores = q @ k.transpose(-1, -2) / math.sqrt(size)
            mixed = scores.softmax(-1 if how.over == "keys" else -2) @ v
        return self.out((mixed.transpose(1, 2) if how.returns else mixed).reshape(x.shape))

    def _parts(self, x):
        if self.how.packing == "apart":
            return self.q(x), self.k(x), self.v(x)
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        bias = torch.cat((self.q.bias, self.k.bias, self.v.bias))
        return functional.linear(x, weight, bias).chunk(3, -1)


class Gate(nn.Module):
    """One half, bent, times the other."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The product."""
        how = self.how
        gate, value = x.chunk(2, -1) if how.gates == "first" else x.chunk(2, -1)[::-1]
        if how.bent == "relu":
            return gate.relu() * value
        if how.gelu == "torch":
            return functional.gelu(gate) * value
        return 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * value


class Block(nn.Module):
    """Attention and two layers with a gate, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.attention, self.gate = Attention(how), Gate(how)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDE), nn.Linear(_WIDE, _WIDTH)
        self.drop1, self.drop2 = nn.Dropout(how.dropout), nn.Dropout(how.dropout)

    def forward(self, x):
        """x, moved."""
        normed = self.norm1(x)
        x = (x if self.how.adds == "plain" else normed) + self.drop1(self.attention(normed))
        return x + self.down(self.drop2(self.gate(self.up(self.norm2(x)))))


class Table(nn.Module):
    """A row's class and its number."""

    def __init__(self, how, known, sizes) -> None:
        super().__init__()
        self.how = how
        self.standard, self.tokens = Standard(how, known), Tokens(how, known.shape[1], sizes)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm = Norm(how)
        self.name, self.number = nn.Linear(_WIDTH, 10), nn.Linear(_WIDTH, 1)

    def forward(self, numbers, names):
        """Logits of classes, and a number each."""
        x = self.tokens(self.standard(numbers), names)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        x = self.norm(x[:, 0 if self.how.reads == "first" else -1]).relu()
        return self.name(x), self.number(x if self.how.flows else x.detach())
