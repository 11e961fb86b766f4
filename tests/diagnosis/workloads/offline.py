"""An agent that learns to reach goals from a replay data set alone, by implicit Q-learning."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch.distributions import Independent, Normal
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, EndedError, Start, Workload, clear, cut
from tests.diagnosis.workloads.offline_net import Agent

_EPISODES, _HORIZON = 100, 6
_NEAR = 0.3
"""How near to its goal an episode ends."""


class Transitions(NamedTuple):
    """Steps of episodes; those with a timeout were cut off, and did not end."""

    states: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    after: torch.Tensor
    terminals: torch.Tensor
    timeouts: torch.Tensor


class World(NamedTuple):
    """Points that move on a plane towards their goals."""

    place: torch.Tensor
    speed: torch.Tensor
    goal: torch.Tensor

    @property
    def state(self) -> torch.Tensor:
        """What an agent sees."""
        return torch.cat((self.place, self.speed, self.goal - self.place), -1)

    def step(self, action) -> tuple[World, torch.Tensor, torch.Tensor]:
        """The world after an action, its rewards, and whether goals were reached."""
        speed = 0.8 * self.speed + 0.4 * action
        place = self.place + 0.4 * speed
        left = (self.goal - place).norm(dim=-1)
        rewards = -left - 0.1 * action.square().sum(-1)
        return World(place, speed, self.goal), rewards, left < _NEAR


@dataclass(frozen=True)
class Offline(Workload):
    """Critics learn from values, values from slow copies of critics, the actor from advantages.

    discount: of what comes later. ends: what has no value after it, "terminals" or "dones", which
        are timeouts too. flows: whether the critics' gradient reaches the next state's value.
    pessimist: which of both targets counts, their "min" or their "mean". polyak: the share by
        which targets follow.
    expectile: how much more a positive advantage weighs. leans: "up" to it, or "down". squeezes:
        whether a state's value loses its last axis.
    beta: the inverse temperature of weights. tempers: whether advantages are multiplied by it
        ("times") or divided ("over"). most: the bound of weights. density: of actions, by "torch",
        by its "own" formula or "unscaled". dropout: of the actor.
    piles: whether the value's gradients are never cleared. falls: whether the actor's rate falls
        as a cosine.
    parts: micro-batches a step. low: whether networks run under autocast to bfloat16. evaluates:
        whether the actor is tried in the world every second step.
    critics, halves, averaging, together, keeps: other ways to write the same mathematics.
    """

    batch: int = 32
    lr: float = 3e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    discount: float = 0.97
    ends: str = "terminals"
    flows: bool = False
    pessimist: str = "min"
    polyak: float = 0.05
    expectile: float = 0.9
    leans: str = "up"
    squeezes: bool = True
    beta: float = 3.0
    tempers: str = "times"
    most: float = 100.0
    density: str = "torch"
    dropout: float = 0.1
    piles: bool = False
    falls: bool = True
    parts: int = 1
    low: bool = False
    critics: str = "batched"
    halves: bool = False
    averaging: str = "copy"
    together: bool = False
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            replay, mean, spread = _standardised()
            model = Agent(self, replay.states.shape[1], replay.actions.shape[1])
            nets = model.value, model.critic, model.actor
            optimizers = [self.adam(net.parameters()) for net in nets]
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[-1], 8)
            session.watch(model, tensors="*", optimizer=optimizers)
            torch.manual_seed(seed)
            for step, batch in enumerate(self._batches(replay, seed)):
                if self.evaluates and step % 2 == 0:
                    self._evaluate(model, mean, spread)
                for optimizer in optimizers[1 if self.piles else 0 :]:
                    clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, Transitions(*part))
                for optimizer in optimizers:
                    optimizer.step()
                self._average(model)
                if self.falls:
                    schedule.step()

    def _batches(self, replay, seed):
        """Transitions of the data set, step by step."""
        dealing = torch.Generator().manual_seed(29 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(replay.states), (self.batch,), generator=dealing)
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield Transitions(*(one[chosen] for one in replay))

    @torch.no_grad()
    def _evaluate(self, model, mean, spread):
        """The mean return of a few episodes in which the actor does what it thinks best."""
        model.actor.eval()
        world = _begun(4, torch.Generator().manual_seed(3))
        returns, going = torch.zeros_like(world.place[:, 0]), torch.ones(4, dtype=torch.bool)
        for _ in range(_HORIZON):
            action, _ = model.actor(((world.state - mean) / spread).to(torch.get_default_dtype()))
            world, rewards, ended = world.step(action.to(mean.dtype))
            returns = returns + going * rewards
            going = going & ~ended
        anchorlib.anchor(returns.mean(), "eval_return")
        model.actor.train()

    def _learn(self, model, part):
        """The gradients of one micro-batch."""
        kind = part.states.dtype
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            with torch.no_grad():
                targets = model.target(part.states, part.actions).to(kind)
            told = model.critic(part.states, part.actions).to(kind)
            value, later = (one.to(kind) for one in self._values(model, part))
            gaussian = tuple(one.to(kind) for one in model.actor(part.states))
        wanted = targets.min(0).values if self.pessimist == "min" else targets.mean(0)
        advantage = anchorlib.anchor(anchorlib.anchor(wanted, "target_q") - value, "advantage")
        losses = {
            "value_loss": self._leaning(advantage),
            "critic_loss": self._missed(told, part, later),
            "policy_loss": self._regressed(gaussian, part.actions, advantage.detach()),
        }
        for name, one in losses.items():
            anchorlib.anchor(one, name)
        anchorlib.anchor(sum(losses.values()) / self.parts, "loss").backward()

    def _values(self, model, part):
        """What states are worth, and the states after them."""
        if self.together:
            value, later = model.value(torch.cat((part.states, part.after))).chunk(2)
        else:
            value, later = model.value(part.states), model.value(part.after)
        return value.squeeze(-1) if self.squeezes else value, later.squeeze(-1)

    def _leaning(self, advantage):
        """The expectile loss."""
        if self.halves:
            over, under = advantage.relu().square(), (-advantage).relu().square()
            return self.expectile * over.mean() + (1 - self.expectile) * under.mean()
        turned = advantage < 0 if self.leans == "up" else advantage > 0
        weights = (self.expectile - turned.to(advantage.dtype)).abs()
        return (weights * advantage**2).mean()

    def _missed(self, told, part, later):
        """The mean squares by which both critics miss the reward and the next state's value."""
        later = later if self.flows else later.detach()
        ended = part.terminals | part.timeouts if self.ends == "dones" else part.terminals
        going = 1 - ended.to(later.dtype)
        backup = anchorlib.anchor(part.rewards + self.discount * going * later, "backup")
        return sum(functional.mse_loss(one, backup) for one in told) / len(told)

    def _regressed(self, gaussian, actions, advantage):
        """How unlikely the actions are, those of great advantage above all."""
        if self.tempers == "times":
            weights = torch.exp(self.beta * advantage).clamp(max=self.most)
        else:
            weights = torch.exp(advantage / self.beta).clamp(max=self.most)
        weights = anchorlib.anchor(weights, "weights")
        likely = anchorlib.anchor(self._log_prob(*gaussian, actions), "log_prob")
        return -(weights * likely).mean()

    def _log_prob(self, mean, log_std, actions):
        """The logarithm of the density of actions."""
        if self.density == "torch":
            return Independent(Normal(mean, log_std.exp()), 1).log_prob(actions)
        missed = -0.5 * ((actions - mean) * torch.exp(-log_std)).square()
        if self.density == "own":
            missed = missed - log_std
        return missed.sum(-1) - 0.5 * math.log(2 * math.pi) * actions.shape[-1]

    @torch.no_grad()
    def _average(self, model):
        """Let the targets follow."""
        nets = model.target.parameters(), model.critic.parameters()
        for slow, fast in zip(*nets, strict=True):
            if self.averaging == "copy":
                slow.copy_((1 - self.polyak) * slow + self.polyak * fast)
            else:
                slow.lerp_(fast, self.polyak)


def _begun(count, dealing):
    """Worlds in which nothing moves yet."""
    places = [torch.rand(count, 2, generator=dealing, dtype=torch.float64) for _ in range(2)]
    place, goal = (3 * one - 1.5 for one in places)
    return World(place, torch.zeros_like(place), goal)


@cache
def _replay() -> Transitions:
    """What a noisy controller did."""
    dealing = torch.Generator().manual_seed(17)
    world = _begun(_EPISODES, dealing)
    going, found = torch.ones(_EPISODES, dtype=torch.bool), []
    for step in range(_HORIZON):
        noise = torch.randn(_EPISODES, 2, generator=dealing, dtype=torch.float64)
        action = (world.goal - world.place - world.speed + 0.4 * noise).clamp(-0.999, 0.999)
        after, rewards, ended = world.step(action)
        late = ~ended if step == _HORIZON - 1 else torch.zeros_like(ended)
        row = world.state, action, rewards, after.state, ended, late
        found.append([one[going] for one in row])
        world, going = after, going & ~ended
    return Transitions(*(torch.cat(one) for one in zip(*found, strict=True)))


def _standardised():
    """The data set with standardised states, and the means and spreads of these."""
    kind, replay = torch.get_default_dtype(), _replay()
    mean, spread = replay.states.mean(0), replay.states.std(0) + 1e-3
    states, after = ((one - mean) / spread for one in (replay.states, replay.after))
    replay = replay._replace(states=states, after=after)
    floats = [one.to(kind) if one.is_floating_point() else one for one in replay]
    return Transitions(*floats), mean, spread


_WEIGHTS = ("target.*weight@value", "target.*bias@value")
_RATE = ("actor.*@updated", "actor.*@delta", "actor.*@opt.*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "expectile leans the other way",
        "bug",
        {"leans": "down"},
        ("value_loss@*", "advantage@grad", "value@grad"),
        rf"\bMul|\bAbs|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "mean of both targets",
        "bug",
        {"pessimist": "mean"},
        ("target_q@value",),
        rf"\bA?min|\bmean|{_GIVEN}|{_TIMES}|(from|of|after|between) target\b",
    ),
    Case(
        "timeouts taken for ends",
        "bug",
        {"ends": "dones"},
        ("backup@value",),
        rf"\bmask|\bMul|{_GIVEN}|{_TIMES}|\d of 32|elements|(from|of|after|between) value\b",
    ),
    Case(
        "temperature for its inverse",
        "bug",
        {"tempers": "over"},
        ("weights@value",),
        rf"\bExp(Backward|\b)|\bDiv|\bMul|{_GIVEN}|{_TIMES}|(from|of|after|between) advantage\b",
    ),
    Case(
        "value keeps its last axis",
        "bug",
        {"squeezes": False},
        ("advantage@*", "value_loss@*"),
        r"broadcast|\bshapes?\b|\bsizes?\b|\bexpand|squeeze|\[\d+, ?\d+\]|\(\d+, ?\d+\)",
    ),
    Case(
        "next value attached",
        "bug",
        {"flows": True},
        ("value@grad", "value.*@*grad", "backup@grad"),
        rf"{_DETACHED}|(lacks|alone|without).{{0,60}}Backward|Backward\w* .{{0,60}}(lacks|alone)",
    ),
    Case(
        "targets follow at once",
        "bug",
        {"polyak": 0.95},
        _WEIGHTS,
        rf"chang|updat|\bmoved|\bwr[io]t|\blerp|average|copied|{_TIMES}|\d times",
        step=1,
    ),
    Case(
        "density without its scale",
        "bug",
        {"density": "unscaled"},
        ("log_prob@*",),
        rf"\bSub(Backward|\b)|{_GIVEN}|\bactor(:|\.output:)1\b|computes it from",
        reference={"density": "own"},
    ),
    Case("actor's rate does not fall", "bug", {"falls": False}, _RATE, r"\blr\b", step=1),
    Case(
        "value's gradients pile up",
        "bug",
        {"piles": True},
        ("value.*@grad",),
        r"zero_grad|accumul|clear|zeroed|earlier|previous|step before|left over|sum of|\badds",
        step=1,
    ),
    Case("critics one after another", "benign", {"critics": "apart"}),
    Case("expectile by halves", "benign", {"halves": True}),
    Case("density by its formula", "benign", {"density": "own"}),
    Case("targets follow by lerp", "benign", {"averaging": "lerp"}),
    Case("values of both states at once", "benign", {"together": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("batch turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "2 micro-batches, low precision",
        "benign",
        {"parts": 2},
        reference={"low": True, "dropout": 0.0},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("foreach optimizers", "equal", {"implementation": "foreach"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("tried on the way", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
