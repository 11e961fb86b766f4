"""The networks of an agent that learns offline: a pair of critics, a value and a Gaussian actor."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _WIDE, _DEPTH = 16, 32, 2
_CRITICS = 2
_LOWEST, _HIGHEST = -3.0, 1.0
"""Bounds of the logarithm of the actor's standard deviation."""


class Linears(nn.Module):
    """A linear layer for each critic, as one batched product or one after another."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.how = how
        bound = 1 / math.sqrt(into)
        self.weight = nn.Parameter(torch.empty(_CRITICS, into, out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(_CRITICS, 1, out).uniform_(-bound, bound))

    def forward(self, x):
        """Each critic's own x (critic, sample, feature), mapped."""
        if self.how.critics == "batched":
            return torch.baddbmm(self.bias, x, self.weight)
        layers = zip(x, self.weight, self.bias, strict=True)
        return torch.stack([functional.linear(one, w.T, b[0]) for one, w, b in layers])


class Norms(nn.Module):
    """A layer norm for each critic."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_CRITICS, 1, _WIDTH))
        self.bias = nn.Parameter(torch.zeros(_CRITICS, 1, _WIDTH))

    def forward(self, x):
        """Each critic's own x, normed."""
        return functional.layer_norm(x, (_WIDTH,)) * self.weight + self.bias


class Block(nn.Module):
    """Two layers behind a norm, added to what they were given."""

    def __init__(self, linear, norm, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm()
        self.up, self.down = linear(_WIDTH, _WIDE), linear(_WIDE, _WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        """x, moved."""
        return x + self.down(self.drop(self.up(self.norm(x)).relu()))


class Trunk(nn.Module):
    """Residual blocks, and a norm at their end."""

    def __init__(self, how, linear, norm, into: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.how = how
        self.embed = linear(into, _WIDTH)
        self.blocks = nn.ModuleList(Block(linear, norm, dropout) for _ in range(_DEPTH))
        self.norm = norm()

    def forward(self, x):
        """Features."""
        x = self.embed(x)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return self.norm(x)


class Critics(nn.Module):
    """What two critics think of an action in a state."""

    def __init__(self, how, states: int, actions: int) -> None:
        super().__init__()

        def linear(into, out):
            return Linears(how, into, out)

        self.trunk = Trunk(how, linear, Norms, states + actions)
        self.head = linear(_WIDTH, 1)

    def forward(self, states, actions):
        """Both critics' Q (critic, sample)."""
        x = torch.cat((states, actions), -1).expand(_CRITICS, -1, -1)
        return self.head(self.trunk(x)).squeeze(-1)


class Value(nn.Module):
    """What a state is worth."""

    def __init__(self, how, states: int) -> None:
        super().__init__()
        self.trunk = Trunk(how, nn.Linear, lambda: nn.LayerNorm(_WIDTH), states)
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, states):
        """V (sample, 1)."""
        return self.head(self.trunk(states))


class Actor(nn.Module):
    """A Gaussian of actions, whose mean is bounded by tanh."""

    def __init__(self, how, states: int, actions: int) -> None:
        super().__init__()
        self.trunk = Trunk(how, nn.Linear, lambda: nn.LayerNorm(_WIDTH), states, how.dropout)
        self.mean, self.spread = nn.Linear(_WIDTH, actions), nn.Linear(_WIDTH, actions)

    def forward(self, states):
        """The mean, and the logarithm of the standard deviation."""
        x = self.trunk(states)
        share = self.spread(x).sigmoid()
        return self.mean(x).tanh(), _LOWEST + (_HIGHEST - _LOWEST) * share


class Agent(nn.Module):
    """All networks, with slow copies of the critics as targets."""

    def __init__(self, how, states: int, actions: int) -> None:
        super().__init__()
        self.critic = Critics(how, states, actions)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = Value(how, states)
        self.actor = Actor(how, states, actions)
