"""Continuous control of a point that is pushed towards a goal: an actor, two critics, copies."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.pilots import ACTION, Actor, Critics, written


@dataclass(frozen=True)
class Navigator(Workload):
    """The two latest batches of moves are learnt from; where a digit's ink lies begins a move.

    gamma: the discount. smooth, most: of the noise on the copies' actions, its factor and its
        bound. ends: whether nothing is worth anything behind an end. limits: whether moves that the
        time limit cuts count as ends. takes: of both critics, the "least" or the "most". values:
        whose worths are aimed at, the "copies'" or the critics' "own". flat: whether rewards lack
        their last axis. counts: the critics that learn, "both" or "one".
    delay: steps from one update of the actor to the next. climbs: whether it goes up. steers:
        whether the critic's gradient reaches the actor ("attached") or stops ("detached").
        clears: gradients of critics are forgotten "before" their backward or "after" their step.
    tau: how far copies move. renews: which do, "both" or the "critics". actor_lr: the actor's
        learning rate. clip: of gradients, 0: not at all. bounds: how actions are bounded.
    low: whether nets run under autocast to bfloat16.
    parts: micro-batches of critics. linear, norming, joins, missed, moves, rewards, least, scale:
        other ways to write the same mathematics.
    """

    lr: float = 1e-2
    actor_lr: float = 4e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    gamma: float = 0.95
    smooth: float = 0.3
    most: float = 0.3
    ends: bool = True
    limits: bool = False
    takes: str = "least"
    values: str = "copies'"
    flat: bool = False
    counts: str = "both"
    delay: int = 2
    climbs: bool = True
    steers: str = "attached"
    clears: str = "before"
    tau: float = 0.05
    renews: str = "both"
    clip: float = 1.0
    bounds: str = "tanh"
    low: bool = False
    parts: int = 1
    linear: str = "torch"
    norming: str = "torch"
    joins: str = "cat"
    missed: str = "torch"
    moves: str = "lerp"
    rewards: str = "differences"
    least: str = "minimum"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            actor, critics = written(Actor(self), self), written(Critics(self), self)
            copies = [copy.deepcopy(one).requires_grad_(False) for one in (actor, critics)]
            of_actor = self.adam(actor.parameters(), lr=self.actor_lr)
            of_critics = self.adam(critics.parameters())
            session.watch(actor, tensors="*", optimizer=of_actor, prefix="actor")
            session.watch(critics, tensors="*", optimizer=of_critics, prefix="critics")
            session.watch(copies[0], tensors="*", prefix="copy_actor")
            session.watch(copies[1], tensors="*", prefix="copy_critics")
            dealing, memory = torch.Generator().manual_seed(91 + 1000 * seed), []
            for step, (images, labels) in enumerate(self.images(seed)):
                memory = [*memory[-1:], self._moved(actor, images, labels, dealing)]
                seen = [torch.cat(parts) for parts in zip(*memory, strict=True)]
                noise = self._noise(len(seen[0]), dealing)
                if self.clears == "before":
                    clear(of_critics, self)
                for part in cut(self.parts, *seen, noise):
                    self._criticize(critics, *copies, *part)
                self._stepped(critics, of_critics)
                if self.clears == "after":
                    clear(of_critics, self)
                if (step + 1) % self.delay == 0:
                    clear(of_actor, self)
                    self._steer(actor, critics, seen[0])
                    self._stepped(actor, of_actor)
                    self._renew(copies[1], critics)
                    if self.renews == "both":
                        self._renew(copies[0], actor)

    def _noise(self, count, dealing):
        noise = torch.randn(count // self.batch, self.batch, ACTION, generator=dealing)
        return (noise.flip(1) if self.turned else noise).flatten(0, 1)

    @torch.no_grad()
    def _moved(self, actor, images, labels, dealing):
        """Where points stand, how they are pushed, what it brings, where they go, what ends."""
        place = 2 * torch.stack(
            (
                images[:, :, :4].mean((1, 2)) - images[:, :, 4:].mean((1, 2)),
                images[:, :4].mean((1, 2)) - images[:, 4:].mean((1, 2)),
            ),
            1,
        )
        speed = torch.stack((images[:, 2:6, 2:6].mean((1, 2)), images[:, ::2].mean((1, 2))), 1)
        angle = labels.to(images.dtype) * (2 * math.pi / 10)
        goal, clue = torch.stack((angle.cos(), angle.sin()), 1), images[:, 3:5, 3]
        states = torch.cat((place, speed, goal, clue), 1)
        actions = self._run(actor, states) + 0.4 * self._noise(len(states), dealing)
        actions = actions.clamp(-1, 1)
        speed = 0.8 * speed + 0.3 * actions
        place = place + 0.5 * speed
        ended = place.abs().amax(1, keepdim=True) > 0.9
        if self.limits:
            ended = ended | (labels[:, None] % 3 == 0)
        after = torch.cat((place, speed, goal, clue), 1)
        return states, actions, self._rewards(place, goal, actions), after, ended

    def _rewards(self, place, goal, actions):
        """The squared distance from the goal, and of the push, both as a cost."""
        effort = 0.1 * actions.square().sum(1, keepdim=True)
        if self.rewards == "differences":
            return -(place - goal).square().sum(1, keepdim=True) - effort
        both = (place * goal).sum(1, keepdim=True)
        return 2 * both - (place.square() + goal.square()).sum(1, keepdim=True) - effort

    def _run(self, model, *given):
        """What a net says, under autocast or not."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(*given)
        kind = given[0].dtype
        return told.to(kind) if torch.is_tensor(told) else tuple(one.to(kind) for one in told)

    @torch.no_grad()
    def _target(self, judges, kept, rewards, after, ended, noise):
        """What critics should say: the reward, and what the least of both says of the next move."""
        noise = (self.smooth * noise).clamp(-self.most, self.most)
        actions = (self._run(kept, after) + noise).clamp(-1, 1)
        one, two = self._run(judges, after, actions)
        if self.least == "maximum":
            worth = -torch.maximum(-one, -two)
        else:
            worth = (torch.minimum if self.takes == "least" else torch.maximum)(one, two)
        worth = worth * ~ended if self.ends else worth
        rewards = rewards[:, 0] if self.flat else rewards
        return anchorlib.anchor(rewards + self.gamma * worth, "target")

    def _criticize(self, critics, kept, judges, *moves):
        """The gradients of both critics."""
        states, actions, *rest = moves
        judges = judges if self.values == "copies'" else critics
        target = self._target(judges, kept, *rest)
        told = self._run(critics, states, actions)
        losses = [self._missed(one, target) for one in told]
        loss = (losses[0] if self.counts == "one" else sum(losses)) / self.parts
        anchorlib.anchor(loss, "critic_loss")
        (loss * self.scale).backward()

    def _missed(self, told, target):
        """The mean of squares."""
        if self.missed == "torch":
            return functional.mse_loss(told, target)
        return torch.linalg.vector_norm(told - target).square() / told.numel()

    def _steer(self, actor, critics, states):
        """The gradients of the actor: what the first critic says of its actions should rise."""
        actions = self._run(actor, states)
        actions = actions.detach() if self.steers == "detached" else actions
        worth = self._run(critics.one, states, actions).mean()
        loss = -worth if self.climbs else worth
        anchorlib.anchor(loss, "actor_loss")
        (loss * self.scale).backward()

    def _stepped(self, model, optimizer):
        """One step by gradients that are unscaled and clipped."""
        for parameter in model.parameters():
            if self.scale != 1 and parameter.grad is not None:
                parameter.grad.div_(self.scale)
        if self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()

    @torch.no_grad()
    def _renew(self, kept, model):
        """Move a copy towards its model."""
        for one, new in zip(kept.parameters(), model.parameters(), strict=True):
            if self.moves == "lerp":
                one.lerp_(new, self.tau)
            else:
                one.mul_(1 - self.tau).add_(new, alpha=self.tau)


_NEXT = ("copy_critics.*input*@value", "copy_critics.*.first@value", "target@value")
_TARGET = ("target@value", "critic_loss@*")
_KEPT = ("copy_*.weight@value", "copy_*.bias@value")
_STEERED = ("actor.*@*grad", "actor_loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_ALONE = r"(only|alone) in [AB]|in [AB] (only|alone)|[AB] (alone|lacks)|missing in [AB]"
CASES = [
    Case(
        "noise not bounded",
        "bug",
        {"most": 9.0},
        _NEXT,
        r"\b[Cc]lamp|\b0\.3\b|\bm(ax|in) .{0,20}\b9(\.0)?\b",
    ),
    Case(
        "no noise on next actions",
        "bug",
        {"smooth": 0.0},
        _NEXT,
        r"\b[Cc]lamp|\b[Mm]ul(Backward|\b)|\b[Aa]dd(Backward|\b)|\bnormal\b",
    ),
    Case(
        "worth behind an end",
        "bug",
        {"ends": False},
        _TARGET,
        rf"\bMul(Backward|\b)|\bmul\b|bitwise_not|\bmask|{_GIVEN}",
    ),
    Case(
        "time limit counts as an end",
        "bug",
        {"limits": True},
        _TARGET,
        rf"\bMul(Backward|\b)|\bmul\b|bitwise_(not|or)|\bmask|{_GIVEN}",
    ),
    Case("most of both critics", "bug", {"takes": "most"}, _TARGET, r"\b[Mm](ini|axi)mum"),
    Case(
        "worths of the critics themselves",
        "bug",
        {"values": "own"},
        ("copy_critics*@value", "critics*@value", "target@value"),
        rf"copy_critics.{{0,80}}({_ALONE})|({_ALONE}).{{0,80}}copy_critics",
    ),
    Case(
        "rewards without their last axis",
        "bug",
        {"flat": True},
        _TARGET,
        r"broadcast|\bshapes?\b|\bexpand|squeeze|\[\d+, ?\d+\]|\(\d+, ?\d+\)|\d+ ?[x×] ?\d+",
    ),
    Case(
        "one critic learns",
        "bug",
        {"counts": "one"},
        ("critic_loss@*", "critics.two*@*grad", "critics.output:1@grad"),
        rf"\bAdd(Backward|\b)|\badd\b|critics\.two.{{0,80}}({_ALONE})|{_DETACHED}",
    ),
    Case(
        "actor goes down",
        "bug",
        {"climbs": False},
        _STEERED,
        r"\bNeg(Backward|\b)|\bneg\b|other sign|is -1(\.0)? times",
        step=1,
    ),
    Case(
        "actions detached",
        "bug",
        {"steers": "detached"},
        ("actor.*@*grad", "actor.*@updated", "actor.*@delta"),
        rf"{_DETACHED}|\bgrad\w* .{{0,60}}({_ALONE})|({_ALONE}).{{0,60}}\bgrad",
        step=1,
    ),
    Case(
        "actor's gradient stays in critics",
        "bug",
        {"clears": "after"},
        ("critics.*@grad",),
        r"zero_grad|accumulat",
        step=2,
    ),
    Case(
        "actor learns at each step",
        "bug",
        {"delay": 1},
        ("actor*@*", "actor_loss@*", "copy_*@value", "critics.one*@*"),
        rf"actor.{{0,80}}({_ALONE})|({_ALONE}).{{0,80}}actor|more often|twice as (many|often)",
    ),
    Case(
        "copies move by half",
        "bug",
        {"tau": 0.5},
        _KEPT,
        rf"\b[Ll]erp|\b0\.05\b|{_TIMES}",
    ),
    Case(
        "actor's copy stays",
        "bug",
        {"renews": "critics"},
        ("copy_actor.*.weight@value", "copy_actor.*.bias@value"),
        r"\b[Ll]erp|\bmoved?\b|\bwritten\b|unchanged|(does not|never|not) (move|change)|stays",
    ),
    Case(
        "rates exchanged",
        "bug",
        {"lr": 4e-3, "actor_lr": 1e-2},
        UPDATES,
        r"\blr\b",
    ),
    Case("adam eps", "bug", {"adam_eps": 1e-3}, UPDATES, r"\beps\b.*(1e-0?[38]|0\.001)"),
    Case(
        "clamp for tanh",
        "bug",
        {"bounds": "clamp"},
        ("actor.bound@value",),
        r"\b[Tt]anh|\b[Cc]lamp",
    ),
    Case("gradients not clipped", "bug", {"clip": 0.0}, ("*@grad",), rf"\bclip|{_TIMES}"),
    Case("layers by einsum", "benign", {"linear": "einsum"}),
    Case("states and actions apart", "benign", {"joins": "apart"}),
    Case("copies by products and sums", "benign", {"moves": "product"}),
    Case("tanh by sigmoid", "benign", {"bounds": "sigmoid"}),
    Case("own layer norms", "benign", {"norming": "own"}),
    Case("errors by a norm", "benign", {"missed": "own"}),
    Case("rewards by products", "benign", {"rewards": "products"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("rows turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("losses scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case(
        "states and actions apart, low precision",
        "benign",
        {"joins": "apart"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("least as a negated most", "equal", {"least": "maximum"}),
    Case("died", "incomplete", {"ends_at": 4}),
]
