"""A player of catch that learns quantiles of returns (QR-DQN) from a prioritised replay."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
)
from tests.diagnosis.workloads.quantiler_net import MOVES, QUANTILES, Agent, Catch

_GAMES, _WARMUP = 8, 24
_LEAST = 1e-2
"""What is added to errors, so that each transition may be drawn again."""


class Window(NamedTuple):
    """Where transitions begin, their moves, the steps that follow, and what is seen thereafter.

    rewards, ended, late: (sample, step). after: what is seen where the return breaks off.
    """

    seen: torch.Tensor
    moves: torch.Tensor
    rewards: torch.Tensor
    ended: torch.Tensor
    late: torch.Tensor
    after: torch.Tensor


class Replay:
    """All transitions, and how likely each one is drawn."""

    def __init__(self, how, dealing: torch.Generator) -> None:
        self.how, self.dealing = how, dealing
        self.steps: list[tuple[torch.Tensor, ...]] = []
        self.priorities = torch.zeros(0, _GAMES)

    def store(self, step, priorities=None) -> None:
        """Keep a step of all games, as likely as the likeliest where nothing is known of it."""
        self.steps.append(step)
        if priorities is None:
            priorities = self.priorities.max().expand(_GAMES)
        self.priorities = torch.cat((self.priorities, priorities[None]))

    def draw(self, count: int):
        """Indices of transitions that have n steps, and how likely each one was."""
        known = self.priorities[: len(self.steps) - self.how.n + 1].flatten()
        parts = (torch.arange(count) + torch.rand(count, generator=self.dealing)) / count
        if self.how.drawing == "cumsum":
            sums = known.cumsum(0)
            total = sums[-1]
            chosen = torch.searchsorted(sums, parts * total, right=True)
        else:
            levels = _tree(known)
            total = levels[-1][0]
            chosen = _descended(levels, parts * total)
        chosen = chosen.clamp(max=len(known) - 1)
        chosen = chosen.flip(0) if self.how.turned else chosen
        return chosen, known[chosen] / total, len(known)

    def window(self, chosen) -> Window:
        """The transitions at indices, with the steps that follow them."""
        seen, moves, rewards, ended, late, after = (
            torch.stack(field) for field in zip(*self.steps, strict=True)
        )
        at, game = chosen // _GAMES, chosen % _GAMES
        times, games = at[:, None] + torch.arange(self.how.n), game[:, None]
        over = (ended | late)[times, games]
        last = at + (over.int().cumsum(1)[:, :-1] == 0).sum(1)
        return Window(
            seen[at, game],
            moves[at, game],
            rewards[times, games],
            ended[times, games],
            late[times, games],
            after[last, game],
        )

    def update(self, chosen, errors) -> None:
        """Let transitions be as likely as their errors are large."""
        self.priorities.view(-1)[chosen] = self.how.priority(errors)


def _tree(leaves):
    """Sums of pairs, sums of these, and so on; the last is the sum of all."""
    size = 2 ** math.ceil(math.log2(len(leaves)))
    levels = [torch.cat((leaves, leaves.new_zeros(size - len(leaves))))]
    while len(levels[-1]) > 1:
        levels.append(levels[-1][0::2] + levels[-1][1::2])
    return levels


def _descended(levels, values):
    """The leaves in whose shares of the sum the values lie."""
    at = torch.zeros(len(values), dtype=torch.long)
    for level in levels[-2::-1]:
        left = level[2 * at]
        right = values >= left
        values, at = torch.where(right, values - left, values), 2 * at + right
    return at


@dataclass(frozen=True)
class Quantiler(Workload):
    """Games are played at random, then by the net, which learns from transitions drawn again.

    n: the steps of a return. gamma: how much later rewards count. bootstraps: what the value after
        n steps is multiplied by, gamma to the "power" of the steps or "once". limits: whether games
        that are cut off "go on" or "end" in their targets. copies: steps until the target net is
        copied.
    explores: the share of moves at random. alpha: of priorities. beta: of the weights that make up
        for them. anneals: whether it rises to 1.
    centres: what advantages are centred over, "moves" or "quantiles". shares: whether the
        streams' gradients reach the trunk "fully", or made smaller, "scaled" or "detached".
    levels: the quantiles that are told, at the "middle" or the "edge" of each share. along: the
        axis of the levels, what is "told" or the "target". kappa: of the Huber loss. weighs:
        whether the errors of samples are weighted "before" they are averaged, or "after".
    clip: of gradients.
    parts: micro-batches a step.
    drawing, streams, keeps, rarity, returns, skewing, atoms, copying: other ways to write the same
        mathematics.
    """

    steps: int = 6
    batch: int = 24
    lr: float = 1e-3
    adam_eps: float = 0.01 / 32
    weight_decay: float = 0.0
    decoupled: bool = False
    n: int = 3
    gamma: float = 0.97
    bootstraps: str = "power"
    limits: str = "go on"
    copies: int = 2
    explores: float = 0.1
    alpha: float = 0.6
    beta: float = 0.4
    anneals: bool = True
    centres: str = "moves"
    shares: str = "scaled"
    levels: str = "middle"
    along: str = "told"
    kappa: float = 1.0
    weighs: str = "before"
    clip: float = 10.0
    parts: int = 1
    drawing: str = "cumsum"
    streams: str = "apart"
    keeps: str = "all"
    rarity: str = "normed"
    returns: str = "sum"
    skewing: str = "chosen"
    atoms: str = "at once"
    copying: str = "whole"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            agent = Agent(self)
            optimizer = self.adam(agent.online.parameters())
            session.watch(agent.online, tensors="*", optimizer=optimizer, prefix="online")
            session.watch(agent.target, tensors="*", prefix="target")
            torch.manual_seed(seed)
            dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
            games, replay = Catch(_GAMES, dealing), Replay(self, dealing)
            for _ in range(_WARMUP):
                self._play(games, replay, dealing)
            for step in range(self.steps):
                if step == self.ends_at:
                    raise EndedError
                if step == self.killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                self._play(games, replay, dealing, agent.online)
                chosen, chances, count = replay.draw(self.batch)
                weights = anchorlib.anchor(self._weights(chances, count, step), "weights")
                clear(optimizer, self)
                errors = self._learn(agent, replay.window(chosen), weights)
                nn.utils.clip_grad_norm_(agent.online.parameters(), self.clip)
                optimizer.step()
                replay.update(chosen, errors)
                if (step + 1) % self.copies == 0:
                    agent.copy(self.copying)

    @torch.no_grad()
    def _play(self, games, replay, dealing, net=None):
        """One move of each game, without a net at random."""
        seen = games.seen()
        moves = torch.randint(0, MOVES, (_GAMES,), generator=dealing)
        if net is not None:
            explores = torch.rand(_GAMES, generator=dealing) < self.explores
            moves = torch.where(explores, moves, net(seen).mean(2).argmax(1))
        rewards, ended, late, after = games.move(moves)
        priorities = self.priority(rewards) if net is None else None
        replay.store((seen, moves, rewards, ended, late, after), priorities)

    def priority(self, errors: Any) -> Any:
        """How likely transitions are drawn whose targets were missed by so much."""
        return (errors.abs() + _LEAST) ** self.alpha

    def _weights(self, chances, count, step):
        """What makes up for how likely samples were, at most 1."""
        beta = self.beta + (1 - self.beta) * (step / self.steps if self.anneals else 0.0)
        if self.rarity == "relative":
            return (chances.min() / chances) ** beta
        weights = (count * chances) ** -beta
        return weights / weights.max()

    def _learn(self, agent, window, weights):
        """The gradients of one batch, and by how much the mean of each sample missed."""
        with torch.no_grad():
            best = agent.online(window.after).mean(2).argmax(1)
            values = agent.target(window.after)[torch.arange(len(best)), best]
            target = self._target(values, window)
        anchorlib.anchor(target, "td_target")
        missed = []
        for seen, moves, wanted, shares in cut(
            self.parts, window.seen, window.moves, target, weights
        ):
            quantiles = agent.online(seen)[torch.arange(len(moves)), moves]
            errors = wanted.mean(1) - quantiles.detach().mean(1)
            missed.append(anchorlib.anchor(errors, "td_error"))
            losses = anchorlib.anchor(self._losses(quantiles, wanted), "quantile_loss")
            if self.weighs == "after":
                losses = losses.mean().expand_as(losses)
            loss = (shares * losses).sum() / self.batch
            anchorlib.anchor(loss, "loss").backward()
        return torch.cat(missed)

    def _target(self, values, window):
        """Rewards of n steps, and the quantiles that follow them."""
        over = window.ended | window.late
        ended = over if self.limits == "end" else window.ended
        if self.returns == "backward":
            told = values
            for at in reversed(range(self.n)):
                told = torch.where(over[:, at, None], values, told)
                told = torch.where(ended[:, at, None], 0, told)
                told = window.rewards[:, at, None] + self.gamma * told
            return told
        before = _before(over)
        powers = self.gamma ** torch.arange(self.n, dtype=values.dtype)
        returns = (window.rewards * before * powers).sum(1)
        steps = before.sum(1)
        factor = self.gamma**steps if self.bootstraps == "power" else self.gamma
        factor = factor * ~(ended & before).any(1)
        return returns[:, None] + factor[:, None] * values

    def _losses(self, told, target):
        """The quantile Huber loss of each sample: a sum over what is told, a mean over targets."""
        edge = 0.5 if self.levels == "middle" else 0.0
        levels = (torch.arange(QUANTILES, dtype=told.dtype) + edge) / QUANTILES
        if self.atoms == "at once":
            return self._pinned(told, target, levels).mean(2).sum(1)
        atoms = (self._pinned(told, atom, levels).sum((1, 2)) for atom in target.split(1, 1))
        return sum(atoms) / QUANTILES

    def _pinned(self, told, target, levels):
        """What it costs to miss targets (sample, told, target)."""
        errors = target[:, None] - told[:, :, None]
        size = errors.abs()
        huber = torch.where(
            size <= self.kappa, 0.5 * errors.square(), self.kappa * (size - 0.5 * self.kappa)
        )
        levels = levels[:, None] if self.along == "told" else levels
        if self.skewing == "chosen":
            return (levels - (errors.detach() < 0).to(levels.dtype)).abs() * huber / self.kappa
        return (
            0.5 * huber / self.kappa + (levels - 0.5) * errors.detach().sign() * huber / self.kappa
        )


def _before(over):
    """Whether steps belong to the return: no game was over before them."""
    ends = over.int().cumsum(1)
    return ends - over.int() == 0


_TARGET = ("td_target@value",)
_LOSS = ("quantile_loss@*", "loss@*", "*dueling@grad", "*output@grad")
_TRUNK = ("online.trunk@*grad", "online.trunk.*@*grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "discount of one step",
        "bug",
        {"bootstraps": "once"},
        _TARGET,
        rf"\bMul|\bAdd|\bPow|gamma|discount|bootstrap|0\.9\d|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "time limits end games",
        "bug",
        {"limits": "end"},
        _TARGET,
        rf"\bMul|\bAdd|\bmask|terminal|bootstrap|\bzeros?\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "levels at the edges",
        "bug",
        {"levels": "edge"},
        _LOSS,
        rf"\bMul|\bAbs|\bSub|quantile level|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "levels along the targets",
        "bug",
        {"along": "target"},
        _LOSS,
        rf"\bMul|\bAbs|\bSub|transpose|broadcast|\bdim\b|\baxis\b|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "averaged before weighted",
        "bug",
        {"weighs": "after"},
        ("loss@value", "quantile_loss@grad"),
        rf"\bMul|\bMean|\bExpand|broadcast|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "advantages centred over quantiles",
        "bug",
        {"centres": "quantiles"},
        ("online.dueling@value",),
        r"\bdim\b|\bMean|\baxis\b",
    ),
    Case(
        "trunk's gradient not made smaller",
        "bug",
        {"shares": "fully"},
        _TRUNK,
        rf"ScaledGradient|\b1\.41|\b0\.707|{_TIMES}",
    ),
    Case(
        "weights' exponent stays",
        "bug",
        {"anneals": False},
        ("weights@value",),
        rf"\bPow|exponent|\bbeta\b|{_TIMES}|{_GIVEN}",
        step=1,
    ),
    Case("eps of Adam", "bug", {"adam_eps": 1e-8}, UPDATES, r"\beps\b"),
    Case(
        "target net never copied",
        "bug",
        {"copies": 1000},
        ("target.*@value",),
        r"\bcop(y|ies|ied)\b|load_state|\bstale|\bunchanged|(stays|keeps|same).{0,40}\bsteps?\b",
        step=2,
    ),
    Case("hidden layers of both streams at once", "benign", {"streams": "joined"}),
    Case("half the Huber loss and its skew", "benign", {"skewing": "sign"}),
    Case("target atoms one by one", "benign", {"atoms": "one by one"}),
    Case("returns backward in time", "benign", {"returns": "backward"}),
    Case("weights relative to the rarest", "benign", {"rarity": "relative"}),
    Case("trunk's gradient by detach", "benign", {"shares": "detached"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("sum tree", "benign", {"drawing": "tree"}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("target net moved all the way", "equal", {"copying": "lerp"}),
    Case("trunk computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
