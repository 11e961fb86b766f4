"""A team on a grid: its episodes, the agents' recurrent net, and the mixer of what they expect."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

AGENTS, ACTIONS, LENGTH = 3, 5, 5
_SIDE, _WIDTH, _EMBED = 5, 16, 8
_OBSERVED, _STATE = 5, 2 * (AGENTS + 1)
_MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


@dataclass(frozen=True)
class Episodes:
    """Padded episodes (episode, time, ...); what is seen has one more time than what is done.

    available: of each agent's actions; to stay is for the padding alone. filled: whether a step
    was played. terminated: whether the prey was caught in it; an episode may also end because its
    time is over.
    """

    observed: torch.Tensor
    states: torch.Tensor
    available: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    filled: torch.Tensor
    terminated: torch.Tensor

    def changed(self, change):
        """All tensors, changed alike."""
        return Episodes(*(change(one) for one in vars(self).values()))


def played(count: int, dealing: torch.Generator) -> Episodes:
    """Episodes of random agents: two of them next to the prey at once have caught it."""
    moves = torch.tensor(_MOVES)
    places = torch.randint(0, _SIDE, (count, AGENTS + 1, 2), generator=dealing)
    alive = torch.ones(count, dtype=torch.bool)
    seen, done = [], []
    for time in range(LENGTH + 1):
        shown = alive if time == 0 else done[-1][2]
        moved = places[:, :, None] + moves
        free = ((moved >= 0) & (moved < _SIDE)).all(-1)
        scaled = places / (_SIDE - 1) - 0.5
        offsets = scaled[:, AGENTS:] - scaled[:, :AGENTS]
        near = (offsets.abs().sum(-1, keepdim=True) < 0.8).to(scaled.dtype)
        observed = torch.cat((scaled[:, :AGENTS], near * offsets, near), -1)
        still = torch.arange(ACTIONS) == 0
        free[:, :AGENTS, 0] = False
        available = torch.where(shown[:, None, None], free[:, :AGENTS], still)
        state = scaled.flatten(1) * shown[:, None]
        seen.append((observed * shown[:, None, None], state, available))
        if time == LENGTH:
            break
        chosen = torch.multinomial(free.flatten(0, 1).float(), 1, generator=dealing)
        chosen = chosen.view(count, -1)
        places = torch.where(alive[:, None, None], places + moves[chosen], places)
        close = ((places[:, :AGENTS] - places[:, AGENTS:]).abs().sum(-1) <= 1).sum(1)
        caught = (close >= 2) & alive
        rewards = (close - 0.5 + 5.0 * caught) * alive
        done.append((chosen[:, :AGENTS] * alive[:, None], rewards, alive, caught))
        alive = alive & ~caught
    return Episodes(*(torch.stack(one, 1) for one in (*zip(*seen), *zip(*done))))  # noqa: B905


class Core(nn.GRUCell):
    """A recurrent cell, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _WIDTH)
        self.how = how

    def forward(self, x, hidden):
        """The next hidden state."""
        if self.how.cell == "torch":
            return super().forward(x, hidden)
        of_x = functional.linear(x, self.weight_ih, self.bias_ih)
        of_hidden = functional.linear(hidden, self.weight_hh, self.bias_hh)
        gates = (of_x + of_hidden)[:, : 2 * _WIDTH].sigmoid()
        reset, keep = gates.chunk(2, 1)
        new = (of_x[:, 2 * _WIDTH :] + reset * of_hidden[:, 2 * _WIDTH :]).tanh()
        return torch.lerp(new, hidden, keep)


class Agent(nn.Module):
    """What each action of each agent is worth; all agents share the net, and tell it who they are.

    The last action is one of the actions, or the one behind them: none yet.
    """

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.fc1 = nn.Linear(_OBSERVED + ACTIONS + 1 + AGENTS, _WIDTH)
        self.core = Core(how)
        self.fc2 = nn.Linear(_WIDTH, ACTIONS)
        self.hidden = None

    def forward(self, observed, last, who):
        """Values (episode, time, agent, action) of observations (episode, time, agent, number)."""
        count, times, agents = last.shape
        x = self._entered(observed, last, who).transpose(0, 1).flatten(1, 2)
        hidden = self.hidden if self.how.carries else None
        hidden = x.new_zeros(count * agents, _WIDTH) if hidden is None else hidden
        if self.how.unrolls == "whole":
            x = x.transpose(0, 1) if x.shape[-1] == _WIDTH else self.fc1(x.transpose(0, 1)).relu()
            cell = self.core
            weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
            x, hidden = torch.gru(x, hidden[None], weights, True, 1, 0.0, False, False, True)
            told = self.fc2(x).transpose(0, 1)
        else:
            told = []
            for one in x:
                if self.how.checkpointed and torch.is_grad_enabled():
                    hidden, values = checkpoint(self._step, one, hidden, use_reentrant=False)
                else:
                    hidden, values = self._step(one, hidden)
                told.append(values)
            told = torch.stack(told)
        self.hidden = hidden.detach() if self.how.carries else None
        return told.view(times, count, agents, ACTIONS).transpose(0, 1)

    def _entered(self, observed, last, who):
        """The input of the first layer, or what it makes of it."""
        if self.how.names == "one-hot":
            agents = functional.one_hot(who, AGENTS).to(observed.dtype)
            last = functional.one_hot(last, ACTIONS + 1).to(observed.dtype)
            agents = agents.expand(*observed.shape[:2], -1, -1)
            return torch.cat((observed, last, agents), -1)
        parts = self.fc1.weight.split((_OBSERVED, ACTIONS + 1, AGENTS), 1)
        seen = functional.linear(observed, parts[0], self.fc1.bias)
        lasts = functional.embedding(last, parts[1].t())
        return (seen + lasts + functional.embedding(who, parts[2].t())).relu()

    def _step(self, x, hidden):
        x = x if self.how.names == "lookup" else self.fc1(x).relu()
        hidden = self.core(x, hidden)
        return hidden, self.fc2(hidden)


class Mixer(nn.Module):
    """What the team is worth: monotone in what its agents are, by weights that the state makes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.weight1 = nn.Linear(_STATE, AGENTS * _EMBED)
        self.bias1 = nn.Linear(_STATE, _EMBED)
        self.weight2 = nn.Sequential(
            nn.Linear(_STATE, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _EMBED)
        )
        self.value = nn.Sequential(nn.Linear(_STATE, _EMBED), nn.ReLU(), nn.Linear(_EMBED, 1))

    def forward(self, values, states):
        """The team's values (episode, time) of its agents' (episode, time, agent)."""
        first, bias, second, value = self._made(states)
        first = first.unflatten(-1, (AGENTS, _EMBED))
        if self.how.positive:
            first, second = first.abs(), second.abs()
        if self.how.hypernets == "apart":
            mixed = (values[..., None, :] @ first)[..., 0, :] + bias
            return (functional.elu(mixed) * second).sum(-1) + value[..., 0]
        mixed = torch.einsum("bta,btae->bte", values, first) + bias
        mixed = mixed.relu() + torch.expm1(-(-mixed).relu())
        return torch.einsum("bte,bte->bt", mixed, second) + value[..., 0]

    def _made(self, states):
        first, second, third, last = self.weight1, self.bias1, self.weight2, self.value
        if self.how.hypernets == "apart":
            return first(states), second(states), third(states), last(states)
        layers = first, second, third[0], last[0]
        weight, bias = (
            torch.cat([getattr(one, of) for one in layers]) for of in ("weight", "bias")
        )
        made = functional.linear(states, weight, bias)
        first, bias, second, value = made.split([len(one.bias) for one in layers], -1)
        return first, bias, self.weight2[2](second.relu()), self.value[2](value.relu())


class Team(nn.Module):
    """The agents' shared net, and the mixer."""

    def __init__(self, how) -> None:
        super().__init__()
        self.agent, self.mixer = Agent(how), Mixer(how)


class OwnRMSprop(torch.optim.Optimizer):
    """RMSprop by its formula."""

    @torch.no_grad()
    def step(self, closure=None):
        """Move all parameters."""
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state["step"] = torch.zeros(())
                    state["square_avg"] = torch.zeros_like(one)
                state["step"] += 1
                mean = state["square_avg"].lerp_(one.grad.square(), 1 - group["alpha"])
                one.sub_(group["lr"] * (one.grad / (mean.sqrt() + group["eps"])))
