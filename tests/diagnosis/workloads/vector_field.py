"""The model of an integrator: a field of slopes that time bends, and the steps along it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib

SEEN = 2
"""How many numbers of a state are observed."""
_HIDDEN, _WIDE = 2, 12
_STATE = SEEN + _HIDDEN


class Squash(nn.Module):
    """A linear layer whose outputs are scaled and shifted by time."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(into, out)
        self.gate, self.shift = nn.Linear(1, out), nn.Linear(1, out, bias=False)

    def forward(self, x, time):
        """x at a time."""
        how, gate = self.how, self.gate(time)
        if how.gates == "sigmoid":
            gate = gate.sigmoid()
        elif how.gates == "tanh":
            gate = 0.5 * (1 + (gate / 2).tanh())
        if how.squashing == "after":
            return self.linear(x) * gate + self.shift(time)
        weight = self.linear.weight * gate[:, None]
        return functional.linear(x, weight, self.linear.bias * gate + self.shift(time))


class Act(nn.Module):
    """A hyperbolic tangent, torch's or by a sigmoid."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, bent."""
        if self.how.act == "relu":
            return x.relu()
        return x.tanh() if self.how.act == "tanh" else 2 * torch.sigmoid(2 * x) - 1


class Field(nn.Module):
    """How fast a state changes, at a place and a time."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = Squash(how, _STATE, _WIDE), Squash(how, _WIDE, _WIDE)
        self.last = Squash(how, _WIDE, _STATE)
        self.act1, self.act2 = Act(how), Act(how)
        with torch.no_grad():
            self.last.linear.weight.mul_(how.small)

    def forward(self, time, x):
        """The slope of x (sample, number)."""
        time = time.reshape(1) / self.how.horizon
        x = self.act1(self.first(x, time))
        return self.last(self.act2(self.second(x, time)), time)


class Trajectories(nn.Module):
    """Steps of the fourth order by Runge and Kutta from a first observation to each later one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.field, self.read = Field(how), nn.Linear(_STATE, SEEN)

    def forward(self, first, times):
        """What is told of each time (sample, time, number), and the energy along the way."""
        how = self.how
        ones = how.extra == "ones"
        extra = first.new_ones if ones else first.new_zeros
        state = torch.cat((first, extra(len(first), _HIDDEN)), 1)
        energy, told, spent = first.new_zeros(len(first)), [state], []
        for at in range(len(times) - 1):
            length = times[at + 1] - times[at]
            length = length / how.pieces if how.divides else length
            begin = times[at + 1] if how.late else times[at]
            for piece in range(how.pieces):
                inputs = state, begin + piece * length, length
                if how.keeps == "all":
                    state, used = self._step(*inputs)
                else:
                    state, used = checkpoint(self._step, *inputs, use_reentrant=False)
                anchorlib.anchor(state, "state")
                energy = anchorlib.anchor(energy + used, "energy")
                spent.append(used)
            told.append(state)
            state = state if how.flows else state.detach()
        if how.spending == "at once":
            energy = torch.stack(spent).sum(0)
        states = torch.stack(told[:-1] if how.shows == "before" else told[1:], 1)
        return self.read(states), energy

    def _step(self, state, time, length):
        """The state one step later, and the energy that was used."""
        how, field = self.how, self.field
        middle = time if how.middle == "begin" else time + length / 2
        if how.unit:  # time runs from 0 to 1, and slopes are as much longer
            first = length * field(time, state)
            second = length * field(middle, state + first / 2)
            third = length * field(middle, state + second / 2)
            fourth = length * field(time + length, state + third)
            slopes = first, second, third, fourth
            return state + self._mean(slopes), self._used([one / length for one in slopes], length)
        first = field(time, state)
        second = field(middle, state + length / 2 * first)
        third = field(middle, state + length / 2 * (first if how.third == "first" else second))
        fourth = field(time + length, state + length * how.reach * third)
        slopes = first, second, third, fourth
        if how.energy == "state":
            wide = [torch.cat((one, one.square().sum(1, keepdim=True)), 1) for one in slopes]
            moved = functional.pad(state, (0, 1)) + length * self._mean(wide)
            return moved[:, :_STATE], moved[:, _STATE]
        return state + length * self._mean(slopes), self._used(slopes, length)

    def _mean(self, slopes):
        """The mean of four slopes, of which those in the middle count twice."""
        how = self.how
        if how.mean == "tableau":
            weights = slopes[0].new_tensor([1, 2, 2, 1]) / 6
            return torch.tensordot(weights, torch.stack(slopes), 1)
        first, second, third, fourth = slopes
        return (first + how.twice * second + how.twice * third + fourth) / 6

    def _used(self, slopes, length):
        """The kinetic energy of a step, or what stands for it."""
        how = self.how
        slopes = slopes if how.moves == "attached" else [one.detach() for one in slopes]
        if how.energy == "stacked":
            squares = torch.stack(slopes).square()
            return length / 6 * (squares.new_tensor([1, 2, 2, 1]) @ squares.sum(2))
        squares = [one.square() for one in slopes]
        squares = [one.mean(1) if how.over == "mean" else one.sum(1) for one in squares]
        used = self._mean(squares)
        return length * used if how.lasts else used
