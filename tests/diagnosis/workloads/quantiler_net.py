"""A game of catching, and the dueling net that tells quantiles of what each move will bring."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MOVES, QUANTILES = 3, 12
_SIDE, _FALL, _REACH, _LIMIT = 8, 2.0, 1.5, 5
_CHANNELS, _WIDTH, _HIDDEN = (8, 16), 64, 24


class Catch:
    """Games side by side: a ball drifts down, and a paddle should be under it at the end.

    A missed ball ends a game; after so many moves it is cut off wherever it stands.
    """

    def __init__(self, games: int, dealing: torch.Generator) -> None:
        self.games, self.dealing = games, dealing
        self.across, self.drift, self.paddle = self._drawn()
        self.down, self.age = torch.zeros(games), torch.zeros(games, dtype=torch.long)

    def _drawn(self):
        """Where new balls and paddles stand, and how balls drift."""
        across, drift, paddle = torch.rand(3, self.games, generator=self.dealing)
        return across * (_SIDE - 1), drift - 0.5, paddle * (_SIDE - 1)

    def seen(self):
        """The ball and the paddle, each in a channel of its own (game, 2, row, column)."""
        at = torch.arange(_SIDE, dtype=self.across.dtype)
        ball = _spot(at[:, None], self.down) * _spot(at, self.across)
        bottom = torch.full_like(self.paddle, _SIDE - 1)
        return torch.stack((ball, _spot(at[:, None], bottom) * _spot(at, self.paddle)), 1)

    def move(self, moves):
        """What the moves bring: rewards, games that ended or were cut off, and what is seen."""
        steps = (moves - 1).to(self.paddle.dtype)
        self.paddle = (self.paddle + _REACH * steps).clamp(0, _SIDE - 1)
        self.down, self.across = self.down + _FALL, self.across + self.drift
        self.age = self.age + 1
        landed = self.down >= _SIDE - _FALL
        caught = landed & ((self.across - self.paddle).abs() < _REACH)
        ended = landed & ~caught
        late = (self.age >= _LIMIT) & ~ended
        rewards = caught.to(steps.dtype) - ended.to(steps.dtype) - 0.05 * steps.abs()
        seen = self.seen()
        self._begin(landed, ended | late)
        return rewards, ended, late, seen

    def _begin(self, landed, over):
        """Drop new balls; begin anew where games are over."""
        across, drift, paddle = self._drawn()
        new = landed | over
        self.down = torch.where(new, 0, self.down)
        self.across = torch.where(new, across, self.across)
        self.drift = torch.where(new, drift, self.drift)
        self.paddle = torch.where(over, paddle, self.paddle)
        self.age = torch.where(over, 0, self.age)


def _spot(at, where):
    """How bright the places are around where something stands."""
    return torch.exp(-(at - where.view(-1, 1, 1)).square())


class Trunk(nn.Module):
    """Two convolutions and a norm, which both streams share."""

    def __init__(self) -> None:
        super().__init__()
        first, second = _CHANNELS
        self.conv1 = nn.Conv2d(2, first, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, x):
        """Features of what is seen."""
        x = self.conv2(self.conv1(x).relu()).relu()
        return self.norm(x.flatten(1))


class Dueling(nn.Module):
    """The value's quantiles, and by how much each move is better than the moves' mean."""

    def __init__(self, how) -> None:
        super().__init__()
        self.axis = 1 if how.centres == "moves" else 2

    def forward(self, value, advantage):
        """Quantiles (sample, move, quantile)."""
        return value[:, None] + advantage - advantage.mean(self.axis, keepdim=True)


class ScaledGradient(torch.autograd.Function):
    """Nothing forward; backward, a gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        """x as it is."""
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        """The gradient, scaled."""
        return grad * ctx.factor, None


class Net(nn.Module):
    """A trunk and two streams.

    The gradient that comes back from the streams to the trunk is divided by the root of two.
    """

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.trunk = Trunk()
        self.value_in, self.advantage_in = (nn.Linear(_WIDTH, _HIDDEN) for _ in range(2))
        self.value = nn.Linear(_HIDDEN, QUANTILES)
        self.advantage = nn.Linear(_HIDDEN, MOVES * QUANTILES)
        self.dueling = Dueling(how)

    def forward(self, x):
        """Quantiles of the return of each move."""
        again = self.how.keeps == "edges" and torch.is_grad_enabled()
        x = checkpoint(self.trunk, x, use_reentrant=False) if again else self.trunk(x)
        value, advantage = self._streams(self._shared(x))
        advantage = self.advantage(advantage.relu()).unflatten(1, (MOVES, QUANTILES))
        return self.dueling(self.value(value.relu()), advantage)

    def _shared(self, x):
        """x, whose gradient is made smaller."""
        factor = math.sqrt(0.5)
        if self.how.shares == "fully" or not x.requires_grad:
            return x
        if self.how.shares == "detached":
            return factor * x + (1 - factor) * x.detach()
        return ScaledGradient.apply(x, factor)

    def _streams(self, x):
        if self.how.streams == "apart":
            return self.value_in(x), self.advantage_in(x)
        layers = self.value_in, self.advantage_in
        weight, bias = (torch.cat([getattr(one, k) for one in layers]) for k in ("weight", "bias"))
        return nn.functional.linear(x, weight, bias).chunk(2, 1)


class Agent(nn.Module):
    """The net that learns, and the one that tells its targets."""

    def __init__(self, how) -> None:
        super().__init__()
        self.online, self.target = Net(how), Net(how).requires_grad_(False)
        self.copy("whole")

    @torch.no_grad()
    def copy(self, how: str) -> None:
        """Let the target net be as the other one is now, copied "whole" or moved by "lerp"."""
        if how == "whole":
            self.target.load_state_dict(self.online.state_dict())
            return
        pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
        for behind, ahead in pairs:
            behind.lerp_(ahead, 1.0)
