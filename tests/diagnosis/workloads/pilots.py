"""The navigator's models: an actor that steers, and two critics of what it does."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STATE, ACTION = 8, 2
_WIDE, _DEEP = 24, 16


class Layer(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """The layer's output."""
        if self.way == "torch":
            return super().forward(x)
        return torch.einsum("ni,oi->no", x, self.weight) + self.bias


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        missed = x - x.mean(-1, keepdim=True)
        spread = missed.square().mean(-1, keepdim=True) + self.eps
        return missed / spread.sqrt() * self.weight + self.bias


class Bound(nn.Module):
    """Numbers between -1 and 1: a tanh, written in one of two ways, or something else."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, bounded."""
        if self.how.bounds == "sigmoid":
            return 2 * torch.sigmoid(2 * x) - 1
        return x.clamp(-1, 1) if self.how.bounds == "clamp" else torch.tanh(x)


class Actor(nn.Module):
    """A state to an action."""

    def __init__(self, how) -> None:
        super().__init__()
        self.first, self.norm, self.act1 = Layer(STATE, _WIDE), Norm(_WIDE), nn.ReLU()
        self.second, self.act2 = Layer(_WIDE, _DEEP), nn.ReLU()
        self.out, self.bound = Layer(_DEEP, ACTION), Bound(how)

    def forward(self, states):
        """The actions (state, 2)."""
        x = self.act1(self.norm(self.first(states)))
        return self.bound(self.out(self.act2(self.second(x))))


class Critic(nn.Module):
    """A state and an action to what they are worth."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first, self.norm, self.act1 = Layer(STATE + ACTION, _WIDE), Norm(_WIDE), nn.ReLU()
        self.second, self.act2, self.out = Layer(_WIDE, _DEEP), nn.ReLU(), Layer(_DEEP, 1)

    def forward(self, states, actions):
        """The worths (state, 1)."""
        if self.how.joins == "cat":
            x = self.first(torch.cat((states, actions), 1))
        else:
            of_states, of_actions = self.first.weight.split((STATE, ACTION), 1)
            x = functional.linear(states, of_states, self.first.bias)
            x = x + functional.linear(actions, of_actions)
        x = self.act1(self.norm(x))
        return self.out(self.act2(self.second(x)))


class Critics(nn.Module):
    """Two critics that begin otherwise."""

    def __init__(self, how) -> None:
        super().__init__()
        self.one, self.two = Critic(how), Critic(how)

    def forward(self, states, actions):
        """What both say."""
        return self.one(states, actions), self.two(states, actions)


def written(model: nn.Module, how) -> nn.Module:
    """The model, whose layers and norms are written as they should be."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.way = how.linear
        if isinstance(module, Norm):
            module.way = how.norming
    return model
