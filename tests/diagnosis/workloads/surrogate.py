"""A net that stands for the solution of a differential equation: waves, gates and smooth layers."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WAVES, _WIDTH, _LAYERS = 6, 16, 3


class Layer(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """The layer's output."""
        if self.way == "einsum":
            return torch.einsum("oi,ni->no", self.weight, x) + self.bias
        return super().forward(x)


class Waves(nn.Module):
    """Places and times as sines and cosines, of frequencies that are drawn once."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("rates", torch.randn(2, _WAVES) * torch.tensor([[0.6], [0.3]]))

    def forward(self, x):
        """x (point, 2) as its waves."""
        how = self.how
        x = torch.stack((x[:, 0], 2 * x[:, 1] - 1), 1) if how.centres else x
        angles = x @ self.rates
        angles = 2 * math.pi * angles if how.turns else angles
        if how.waves == "phase":
            return torch.cat((angles.sin(), (angles + math.pi / 2).sin()), 1)
        second = angles.sin() if how.waves == "sines" else angles.cos()
        return torch.cat((angles.sin(), second), 1)


class Act(nn.Module):
    """A tanh, written in one of two ways, or something else."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        if self.how.act == "sigmoid":
            return 2 * torch.sigmoid(2 * x) - 1
        return {"tanh": torch.tanh, "relu": functional.relu, "sin": torch.sin}[self.how.act](x)


class Mixed(nn.Module):
    """Layers, each of which chooses between two views of the input."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.one, self.other = Layer(2 * _WAVES, _WIDTH), Layer(2 * _WAVES, _WIDTH)
        self.views = nn.ModuleList(Act(how) for _ in range(2))
        sizes = [2 * _WAVES, *[_WIDTH] * _LAYERS]
        self.layers = nn.ModuleList(Layer(*pair) for pair in pairwise(sizes))
        self.acts = nn.ModuleList(Act(how) for _ in range(_LAYERS))

    def forward(self, x):
        """What the last layer chose."""
        how = self.how
        one, other = self.views[0](self.one(x)), self.views[1](self.other(x))
        if how.mixes == "exchanged":
            one, other = other, one
        for layer, act in zip(self.layers, self.acts, strict=True):
            share = act(layer(x))
            if how.mixes == "whole":
                x = share * one + other
            elif how.mixes == "moved":
                x = one + share * (other - one)
            elif how.mixes == "lerp":
                x = torch.lerp(one, other, share)
            else:
                x = (1 - share) * one + share * other
        return x


class Surrogate(nn.Module):
    """The solution at places and times."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.waves, self.mixed, self.leave = Waves(how), Mixed(how), Layer(_WIDTH, 1)
        for module in self.modules():
            if isinstance(module, Layer):
                module.way = how.linear
                nn.init.xavier_normal_(module.weight)

    def forward(self, x):
        """x (point, 2), of places in -1 to 1 and times in 0 to 1, as (point, 1)."""
        waves = self.waves(x)
        if self.how.checkpointed:
            return self.leave(checkpoint(self.mixed, waves, use_reentrant=False))
        return self.leave(self.mixed(waves))
