"""A bidirectional encoder in the manner of BERT, with heads for where an answer starts and ends."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

PAD, CLS, SEP = range(3)
"""Tokens that are no words."""
_WIDTH, _HEADS, _WIDE, _LAYERS = 32, 4, 64, 2


class Embeddings(nn.Module):
    """Words, places and segments, added, normed and dropped out."""

    def __init__(self, how, words: int, longest: int) -> None:
        super().__init__()
        self.how = how
        self.words = nn.Embedding(words, _WIDTH, padding_idx=PAD)
        self.positions = nn.Embedding(longest, _WIDTH)
        self.segments = nn.Embedding(2, _WIDTH)
        self.norm, self.drop = nn.LayerNorm(_WIDTH, 1e-12), nn.Dropout(how.dropout)

    def forward(self, ids, segments, positions):
        """The first hidden state."""
        words, places, parts = self.words(ids), self.positions(positions), self.segments(segments)
        x = words + places + parts if self.how.adds == "positions first" else words + parts + places
        return self.drop(self.norm(x))


class Attention(nn.Module):
    """Attention of all tokens to all tokens that are no padding."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.query, self.key, self.value, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.drop = nn.Dropout(how.dropout)

    def forward(self, x, attends):
        """x, mixed. attends: which tokens are seen (row, key), or by whom (row, query, key)."""
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self._parts(x))
        if attends.ndim == 3:
            attends = attends[:, None]
        elif self.how.masks == "queries":
            attends = attends[:, None, :, None]
        else:
            attends = attends[:, None, None, :]
        if self.how.attention == "torch":
            share = self.drop.p if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(q, k, v, attends, share)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
            mixed = self.drop(self._shares(scores, attends)) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _shares(self, scores, attends):
        """The softmax of scores over keys that are seen."""
        if self.how.masks == "behind":
            return scores.softmax(-1) * attends
        if self.how.masking == "filled":
            scores = scores.masked_fill(~attends, torch.finfo(scores.dtype).min)
        else:
            scores = scores + (1 - attends.to(scores.dtype)) * -10_000.0
        return scores.softmax(-1)

    def _parts(self, x):
        if self.how.projection == "apart":
            return self.query(x), self.key(x), self.value(x)
        weight = torch.cat((self.query.weight, self.key.weight, self.value.weight))
        bias = torch.cat((self.query.bias, self.key.bias, self.value.bias))
        return functional.linear(x, weight, bias).chunk(3, -1)


class Layer(nn.Module):
    """Attention and two linear layers, each added to what it was given, then normed."""

    def __init__(self, how) -> None:
        super().__init__()
        self.attention = Attention(how)
        self.up, self.down = nn.Linear(_WIDTH, _WIDE), nn.Linear(_WIDE, _WIDTH)
        self.act = nn.GELU()
        self.norm1, self.norm2 = (nn.LayerNorm(_WIDTH, 1e-12) for _ in range(2))
        self.drop1, self.drop2 = (nn.Dropout(how.dropout) for _ in range(2))

    def forward(self, x, attends):
        """The next hidden state."""
        x = self.norm1(x + self.drop1(self.attention(x, attends)))
        return self.norm2(x + self.drop2(self.down(self.act(self.up(x)))))


class Reader(nn.Module):
    """Logits of where the answer starts, and of where it ends."""

    def __init__(self, how, words: int, longest: int) -> None:
        super().__init__()
        self.how = how
        self.embeddings = Embeddings(how, words, longest)
        self.layers = nn.ModuleList(Layer(how) for _ in range(_LAYERS))
        self.span = nn.Linear(_WIDTH, 2)
        self.apply(_begun)

    def forward(self, ids):
        """Logits (row, token) of both ends; the first token stands for no answer."""
        seen = ids != PAD
        segments = self._segments(ids, seen)
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        if self.how.packs:
            rows = torch.arange(len(ids))[:, None].expand_as(ids)[seen]
            attends = (rows[:, None] == rows)[None]
            x = self.embeddings(*(one[seen][None] for one in (ids, segments, positions)))
        else:
            attends = seen
            x = self.embeddings(ids, segments, positions)
        for layer in self.layers:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = layer(x, attends)
            else:
                x = checkpoint(layer, x, attends, use_reentrant=False)
        logits = self.span(x)
        if self.how.packs:
            logits = logits.new_zeros(*ids.shape, 2).index_put((seen,), logits[0])
        may = (ids > SEP) & (segments == 1) if self.how.bars == "question" else ids > SEP
        barred = ~(may | (ids == CLS))
        starts, ends = logits.unbind(-1)
        return starts.masked_fill(barred, -1e30), ends.masked_fill(barred, -1e30)

    def _segments(self, ids, seen):
        """0 from the first token to the separator behind the question, 1 in the passage."""
        separators = (ids == SEP).long()
        before = separators.cumsum(1)
        before = before if self.how.separator == "passage" else before - separators
        return before.clamp(max=1) * seen


def _begun(module):
    """Draw the parameters of a module."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=0.1, a=-0.2, b=0.2)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])
