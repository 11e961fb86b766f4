"""The nets of a contextual bandit, and the rounds that an older policy has logged."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tests.diagnosis.workloads.base import digits

ACTIONS = 5
LOGGED = 256
"""Rounds that are learnt from; those behind them are for the evaluation."""
_HELD = 64
_KNOWN = 120
"""Digits that the older policy was made of."""
_PIXELS, _WIDTH = 64, 16
_EXPLORES = 0.2
"""The share of rounds in which the older policy did pick any offered action."""


class Rounds(NamedTuple):
    """What was logged: contexts, actions on offer, the action taken, its reward, and folds."""

    contexts: torch.Tensor
    offered: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    folds: torch.Tensor

    def at(self, chosen) -> Rounds:
        """Some of the rounds."""
        return Rounds(*(one[chosen] for one in self))


def masked(logits, offered):
    """Logits with those of actions that are not on offer at the lowest."""
    return logits.masked_fill(~offered, torch.finfo(logits.dtype).min)


class Logger(nn.Module):
    """The policy that wrote the log: it compares with means of digits, and explores."""

    def __init__(self, explore: float, mixes: str = "sum") -> None:
        super().__init__()
        self.explore, self.mixes = explore, mixes
        images, labels = digits()
        images = images[:_KNOWN].flatten(1).to(torch.get_default_dtype())
        kinds = labels[:_KNOWN] // 2
        means = torch.stack([images[kinds == one].mean(0) for one in range(ACTIONS)])
        self.scores = nn.Linear(_PIXELS, ACTIONS)
        with torch.no_grad():
            self.scores.weight.copy_(means / 4)
            self.scores.bias.copy_(-means.square().sum(1) / 8)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, contexts, offered):
        """The probability of each action."""
        greedy = masked(self.scores(contexts), offered).softmax(1)
        uniform = offered / offered.sum(1, keepdim=True)
        if self.mixes == "lerp":
            return torch.lerp(greedy, uniform.to(greedy.dtype), self.explore)
        return (1 - self.explore) * greedy + self.explore * uniform


def logged(seed: int) -> tuple[Rounds, Rounds]:
    """The rounds to learn from, and those to evaluate on; a digit's half is the right action."""
    dealing = torch.Generator().manual_seed(31 + 1000 * seed)
    images, labels = digits()
    count = LOGGED + _HELD
    chosen = _KNOWN + torch.randperm(len(images) - _KNOWN, generator=dealing)[:count]
    contexts = images[chosen].flatten(1).to(torch.get_default_dtype())
    right = labels[chosen] // 2
    offered = torch.rand(count, ACTIONS, generator=dealing) < 0.75
    offered = offered.scatter(1, right[:, None], value=True)
    chances = Logger(_EXPLORES)(contexts, offered)
    actions = torch.multinomial(chances, 1, generator=dealing)[:, 0]
    clicked = torch.rand(count, generator=dealing) < torch.where(actions == right, 0.9, 0.2)
    rewards = clicked.to(contexts.dtype)
    rounds = Rounds(contexts, offered, actions, rewards, torch.arange(count) % 2)
    return rounds.at(slice(LOGGED)), rounds.at(slice(LOGGED, None))


class Rewards(nn.Module):
    """The reward that each action would have: one head an action."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.trunk, self.norm = nn.Linear(_PIXELS, _WIDTH), nn.LayerNorm(_WIDTH)
        self.drop = nn.Dropout(how.dropout)
        self.heads = nn.ModuleList(nn.Linear(_WIDTH, 1) for _ in range(ACTIONS))

    def forward(self, contexts):
        """Rewards (round, action)."""
        x = self.drop(functional.silu(self.norm(self.trunk(contexts))))
        if self.how.heads == "product":
            weight = torch.cat([head.weight for head in self.heads])
            return functional.linear(x, weight, torch.cat([head.bias for head in self.heads]))
        told = [head(x) for head in self.heads]
        if self.how.heads == "stacked":
            return torch.cat(told).view(-1, ACTIONS)
        return torch.cat(told, 1)


class Policy(nn.Module):
    """The logits of actions."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.act = nn.Linear(_PIXELS, _WIDTH), nn.Tanh()
        self.out = nn.Linear(_WIDTH, ACTIONS)

    def forward(self, contexts):
        """Logits (round, action), also of what is not on offer."""
        return self.out(self.act(self.trunk(contexts)))


class Bandit(nn.Module):
    """The policy that learns, a reward model for each fold, and the policy that wrote the log."""

    def __init__(self, how) -> None:
        super().__init__()
        self.policy = Policy()
        self.rewards = nn.ModuleList(Rewards(how) for _ in range(2))
        self.logger = Logger(how.explore, how.mixes)

    def forward(self, contexts, offered):
        """Logits, rewards (round, fold, action), and the older policy's probabilities."""
        told = torch.stack([rewards(contexts) for rewards in self.rewards], 1)
        return self.policy(contexts), told, self.logger(contexts, offered)
