"""A net that tells sets: convolutions of a canvas, and learnt queries that attend to them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
QUERIES = 4
HIGH, WIDE = 16, 24
WIDTH = 16
_HEADS = 2
_GROUPS = 4


class Net(nn.Module):
    """Tells after each layer of the decoder, for each query, a class and a box."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.backbone = Backbone(how)
        self.places = nn.Parameter(torch.randn(HIGH * WIDE // 16, WIDTH) / 2)
        self.queries = nn.Parameter(torch.randn(QUERIES, WIDTH))
        self.layers = nn.ModuleList(Layer(how) for _ in range(2))
        self.norm = _norm(how)
        self.heads = Heads(how)

    def forward(self, scenes):
        """Logits (layer, scene, query, class) and boxes: their middles and sizes."""
        memory = self.backbone(scenes).flatten(2).transpose(1, 2)
        memory = memory.detach() if self.how.memory == "detached" else memory
        queries = self.queries.expand(len(scenes), -1, -1)
        state, states = torch.zeros_like(queries), []
        for layer in self.layers:
            state = layer(state, queries, memory, self.places)
            states.append(state if self.how.normed == "last" else self.norm(state))
        if self.how.normed == "last":
            states[-1] = self.norm(state)
        if self.how.stacks == "before":
            return self.heads(torch.stack(states))
        told = [self.heads(state) for state in states]
        return tuple(torch.stack(parts) for parts in zip(*told, strict=True))


class Backbone(nn.Module):
    """Two convolutions, each a half of what it is given."""

    def __init__(self, how):
        super().__init__()
        convolution = nn.Conv2d if how.convolution == "torch" else Patches
        self.first = convolution(1, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(_GROUPS, 8) if how.grouping == "torch" else GroupNorm(_GROUPS, 8)
        self.second = convolution(8, WIDTH, 3, stride=2, padding=1)

    def forward(self, scenes):
        """Features of a canvas."""
        return self.second(functional.silu(self.norm(self.first(scenes))))


class Layer(nn.Module):
    """Queries attend to each other, then to a memory."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.own = Attention(how)
        self.norm1 = _norm(how)
        self.cross = Attention(how)
        self.norm2 = _norm(how)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)
        self.norm3 = _norm(how)

    def forward(self, state, queries, memory, places):
        """The next state."""
        asked = state + queries
        state = self.norm1(state + self.own(asked, asked, state))
        asked = state + queries if self.how.asks == "queries" else state
        keys = memory + places if self.how.placed == "keys" else memory
        state = self.norm2(state + self.cross(asked, keys, memory))
        return self.norm3(state + self.outer(functional.gelu(self.inner(state))))


class Attention(nn.Module):
    """Softmax attention of two heads."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, asked, keys, values):
        """What the values tell about what is asked."""
        asked, keys, values = self.query(asked), self.key(keys), self.value(values)
        heads = [one.unflatten(-1, (_HEADS, -1)).transpose(-2, -3) for one in (asked, keys, values)]
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(*heads)
        else:
            asked, keys, values = heads
            scores = asked @ keys.transpose(-1, -2)
            scores = scores / math.sqrt(WIDTH // _HEADS) if self.how.root else scores
            mixed = scores.softmax(-1) @ values
        return self.out(mixed.transpose(-2, -3).flatten(-2))


class Heads(nn.Module):
    """The class and the box of each query."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.name = nn.Linear(WIDTH, CLASSES + 1)
        self.box = nn.Linear(WIDTH, 4)

    def forward(self, state):
        """Logits, and boxes from 0 to 1."""
        box = self.box(state)
        if self.how.bounded == "sigmoid":
            return self.name(state), box.sigmoid()
        if self.how.bounded == "tanh":
            return self.name(state), ((box / 2).tanh() + 1) / 2
        return self.name(state), box.clamp(0.01, 1)


def _norm(how):
    return (nn.LayerNorm if how.norming == "torch" else LayerNorm)(WIDTH)


class LayerNorm(nn.LayerNorm):
    """The norm over the last axis, step by step."""

    def forward(self, told):
        """What is told, normed."""
        spread, mean = torch.var_mean(told, -1, correction=0, keepdim=True)
        return (told - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class GroupNorm(nn.GroupNorm):
    """The norm over groups of channels, step by step."""

    def forward(self, told):
        """What is told, normed."""
        groups = told.reshape(len(told), self.num_groups, -1)
        groups = groups - groups.mean(-1, keepdim=True)
        groups = groups / (groups.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return groups.view_as(told) * self.weight[:, None, None] + self.bias[:, None, None]


class Patches(nn.Conv2d):
    """A convolution as a product of patches and a matrix."""

    def forward(self, told):
        """What is told, convolved."""
        high, wide = (size // 2 for size in told.shape[2:])
        patches = functional.unfold(told, 3, padding=1, stride=2)
        made = self.weight.flatten(1) @ patches + self.bias[:, None]
        return made.unflatten(2, (high, wide))
