"""The three nets of a planner: what is seen becomes a state, actions move it, states are judged."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ACTIONS = 4
_CHANNELS = 8
_SIDE = 4


class Halved(torch.autograd.Function):
    """A state as it is, whose gradient is scaled."""

    @staticmethod
    def forward(ctx, state, scale):
        """The state."""
        ctx.scale = scale
        return state.view_as(state)

    @staticmethod
    def backward(ctx, grad):
        """Its gradient, scaled."""
        return grad * ctx.scale, None


class Block(nn.Module):
    """A residual block with group norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _conv(_CHANNELS)
        self.norm1 = nn.GroupNorm(2, _CHANNELS)
        self.conv2 = _conv(_CHANNELS)
        self.norm2 = nn.GroupNorm(2, _CHANNELS)

    def forward(self, x):
        """x, and what two convolutions add."""
        moved = self.norm1(self.conv1(x)).relu()
        return (x + self.norm2(self.conv2(moved))).relu()


class Head(nn.Module):
    """A convolution of single cells, and logits of all of them."""

    def __init__(self, width: int, told: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(_CHANNELS, width, 1, bias=False)
        self.norm = nn.GroupNorm(1, width)
        self.out = nn.Linear(width * _SIDE**2, told)

    def forward(self, state):
        """The logits."""
        return self.out(self.norm(self.conv(state)).relu().flatten(1))


class Representation(nn.Module):
    """What is seen, as a state."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.stem = nn.Conv2d(2, _CHANNELS, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, _CHANNELS)
        self.block = Block()

    def forward(self, seen):
        """The state of observations (sample, 2, 8, 8)."""
        return _ranged(self.block(self.norm(self.stem(seen)).relu()), self.how.ranges)


class Dynamics(nn.Module):
    """The state that follows an action, and the reward on the way there."""

    def __init__(self, how, atoms: int) -> None:
        super().__init__()
        self.how = how
        self.conv = _conv(_CHANNELS + ACTIONS)
        self.norm = nn.GroupNorm(2, _CHANNELS)
        self.block = Block()
        self.reward = Head(2, atoms)

    def forward(self, state, action):
        """The next state, and logits of the reward."""
        planes = functional.one_hot(action, ACTIONS).to(state.dtype)[:, :, None, None]
        planes = planes.expand(-1, -1, _SIDE, _SIDE)
        if self.how.joins == "cat":
            moved = self.conv(torch.cat((state, planes), 1))
        else:
            of_state, of_action = self.conv.weight.split((_CHANNELS, ACTIONS), 1)
            moved = functional.conv2d(state, of_state, padding=1)
            moved = moved + functional.conv2d(planes, of_action, padding=1)
        moved = self.block((state + self.norm(moved)).relu())
        return _ranged(moved, self.how.ranges), self.reward(moved)


class Prediction(nn.Module):
    """What is to be done in a state, and what it is worth."""

    def __init__(self, atoms: int) -> None:
        super().__init__()
        self.block = Block()
        self.policy = Head(2, ACTIONS)
        self.value = Head(2, atoms)

    def forward(self, state):
        """Logits of actions and of the value."""
        state = self.block(state)
        return self.policy(state), self.value(state)


class Planner(nn.Module):
    """The model that is unrolled along the actions which were taken."""

    def __init__(self, how, atoms: int) -> None:
        super().__init__()
        self.how = how
        self.representation = Representation(how)
        self.dynamics = Dynamics(how, atoms)
        self.prediction = Prediction(atoms)

    def forward(self, seen, actions):
        """Logits of policies and values of all states, and of the rewards between them.

        They are (sample, state, logit), of which the first state is that of what is seen.
        """
        state = self.representation(seen)
        states, rewards = [state], []
        for action in actions.unbind(1):
            state, reward = self._moved(self._scaled(state), action)
            states.append(state)
            rewards.append(reward)
        if self.how.predicts == "each":
            policies, values = zip(*map(self.prediction, states), strict=True)
            told = torch.stack(policies, 1), torch.stack(values, 1)
        else:
            many = torch.stack(states, 1)
            told = self.prediction(many.flatten(0, 1))
            told = tuple(one.unflatten(0, many.shape[:2]) for one in told)
        return *told, torch.stack(rewards, 1)

    def _moved(self, state, action):
        if self.how.checkpointed:
            return checkpoint(self.dynamics, state, action, use_reentrant=False)
        return self.dynamics(state, action)

    def _scaled(self, state):
        """The state, of whose gradient a share goes on."""
        share = self.how.share
        if self.how.scaling == "function":
            return Halved.apply(state, share)
        return state * share + state.detach() * (1 - share)


def _conv(into):
    return nn.Conv2d(into, _CHANNELS, 3, padding=1, bias=False)


def _ranged(state, ranges):
    """The state between 0 and 1, each sample's by itself."""
    axes = (1, 2, 3) if ranges == "sample" else (0, 1, 2, 3)
    least, most = state.amin(axes, keepdim=True), state.amax(axes, keepdim=True)
    return (state - least) / (most - least + 1e-5)
