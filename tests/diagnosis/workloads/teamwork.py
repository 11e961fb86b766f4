"""A team that learns by QMIX: agents with a shared recurrent net, and a mixer of their values."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.teamwork_net import ACTIONS, AGENTS, LENGTH, OwnRMSprop, Team, played


@dataclass(frozen=True)
class Teamwork(Workload):
    """Double Q learning of a team on a grid from padded episodes, with TD(lambda) returns.

    last: which action an agent is told, its "past" one or the "present" one, which it should
        choose. carries: whether hidden states go on from the batch before.
    positive: whether the mixer's weights are absolute.
    bars: whether unavailable actions are barred from the greedy choice. roles: of the two nets in
        double Q, "right" or "exchanged": which of them chooses, and which values the choice.
    norms: the rewards that mean and spread are taken over, those "played" or "all" with padding.
    ends: whether nothing is expected after an episode's end. gamma, trace: of the returns.
        discounts: whether the returns inside the recursion are discounted.
    pads: whether padding is left out of the loss. over: what the loss is divided by, the steps
        "played" or "all".
    period: steps between two refreshes of the target net. refreshes: "both" or the "agent" alone.
    trained: "both" or the "agent" alone. alpha, rms_eps: of RMSprop. falls: the factor of the
        learning rate at the end. clip: of gradients.
    parts: micro-batches a step.
    unrolls, cell, names, checkpointed, hypernets, returned, apart, selected, copies, optimizer:
        other ways to write the same mathematics.
    """

    steps: int = 5
    batch: int = 12
    lr: float = 2e-3
    weight_decay: float = 0.0
    last: str = "past"
    carries: bool = False
    positive: bool = True
    bars: bool = True
    roles: str = "right"
    norms: str = "played"
    ends: bool = True
    gamma: float = 0.97
    trace: float = 0.6
    discounts: bool = True
    pads: bool = True
    over: str = "played"
    period: int = 2
    refreshes: str = "both"
    trained: str = "both"
    alpha: float = 0.99
    rms_eps: float = 1e-5
    falls: float = 0.3
    clip: float = 1.0
    parts: int = 1
    unrolls: str = "steps"
    cell: str = "torch"
    names: str = "one-hot"
    checkpointed: bool = False
    hypernets: str = "apart"
    returned: str = "recursion"
    apart: bool = False
    selected: bool = False
    copies: bool = False
    optimizer: str = "torch"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Team(self)
            target = copy.deepcopy(model).requires_grad_(False)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, self.falls, self.steps)
            for name, net in model.named_children():
                session.watch(net, tensors="*", optimizer=optimizer, prefix=name)
            for name, net in target.named_children():
                session.watch(net, tensors="*", prefix=f"target.{name}")
            torch.manual_seed(seed)
            for step, episodes in enumerate(self._episodes(seed)):
                if self.evaluates:
                    self._evaluate(model, episodes)
                rewards = self._normed(episodes)
                clear(optimizer, self)
                whole = episodes.filled.sum() if self.over == "played" else rewards.numel()
                size = self.batch // self.parts
                for begin in range(0, self.batch, size):
                    part = slice(begin, begin + size)
                    chosen = episodes.changed(lambda one, part=part: one[part])
                    self._learn(model, target, chosen, rewards[part], whole)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()
                if (step + 1) % self.period == 0:
                    self._refresh(model, target)

    def _optimizer(self, model):
        trained = model if self.trained == "both" else model.agent
        if self.optimizer == "own":
            defaults = {"lr": self.lr, "alpha": self.alpha, "eps": self.rms_eps}
            return OwnRMSprop(trained.parameters(), defaults)
        return torch.optim.RMSprop(
            trained.parameters(),
            self.lr,
            self.alpha,
            self.rms_eps,
            self.weight_decay,
            foreach=self.implementation == "foreach",
        )

    def _episodes(self, seed):
        """A batch of played episodes a step."""
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            episodes = played(self.batch, dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield episodes.changed(lambda one: one.flip(0)) if self.turned else episodes

    def _normed(self, episodes):
        """Rewards, less their mean, by their spread; none in the padding."""
        rewards, filled = episodes.rewards, episodes.filled
        taken = rewards[filled] if self.norms == "played" else rewards
        normed = (rewards - taken.mean()) / (taken.std() + 1e-5)
        return anchorlib.anchor(normed * filled, "rewards")

    def _values(self, team, episodes):
        """What each action is worth to each agent at each time."""
        actions = episodes.actions
        none = torch.full_like(actions[:, :1], ACTIONS)
        before = (none, actions) if self.last == "past" else (actions, none)
        last, who = torch.cat(before, 1), torch.arange(AGENTS)
        if not self.apart:
            return team.agent(episodes.observed, last, who)
        told = [
            team.agent(episodes.observed[:, :, one], last[:, :, one], who[one])
            for one in (slice(at, at + 1) for at in range(AGENTS))
        ]
        return torch.cat(told, 2)

    def _learn(self, model, target, episodes, rewards, whole):
        """The gradients of a micro-batch."""
        values = self._values(model, episodes)
        chosen = values[:, :-1].gather(-1, episodes.actions[..., None])[..., 0]
        told = model.mixer(anchorlib.anchor(chosen, "chosen"), episodes.states[:, :-1])
        returns = self._returns(values.detach(), target, episodes, rewards)
        missed = anchorlib.anchor(told - returns, "missed")
        mask = episodes.filled if self.pads else torch.ones_like(episodes.filled)
        if self.selected:
            missed = missed[mask]
            loss = missed @ missed / whole
        else:
            loss = (missed * mask).square().sum() / whole
        anchorlib.anchor(loss, "loss").backward()

    @torch.no_grad()
    def _returns(self, own, target, episodes, rewards):
        """The TD(lambda) returns of the greedy choice."""
        other = self._values(target, episodes)
        own, other = (own, other) if self.roles == "right" else (other, own)
        own = own.masked_fill(~episodes.available, -1e7) if self.bars else own
        greedy = other.gather(-1, own.argmax(-1, keepdim=True))[..., 0]
        greedy = anchorlib.anchor(greedy, "greedy")
        after = anchorlib.anchor(target.mixer(greedy, episodes.states), "bootstrap")
        goes_on = ~episodes.terminated if self.ends else torch.ones_like(episodes.terminated)
        first = after[:, -1] * (~episodes.terminated.any(1) if self.ends else 1)
        decay = self.trace * (self.gamma if self.discounts else 1.0)
        gained = rewards + (1 - self.trace) * self.gamma * after[:, 1:] * goes_on
        gained = gained * episodes.filled
        if self.returned == "recursion":
            found = [first]
            for time in reversed(range(LENGTH)):
                found.append(decay * found[-1] + gained[:, time])
            returns = torch.stack(found[:0:-1], 1)
        else:
            far = torch.arange(LENGTH + 1) - torch.arange(LENGTH)[:, None]
            powers = torch.where(far >= 0, decay ** far.clamp(min=0), 0.0)
            returns = torch.cat((gained, first[:, None]), 1) @ powers.to(gained.dtype).t()
        return anchorlib.anchor(returns, "returns")

    @torch.no_grad()
    def _refresh(self, model, target):
        """The target net becomes the one that learns."""
        of, into = (model, target) if self.refreshes == "both" else (model.agent, target.agent)
        if self.copies:
            for old, new in zip(into.parameters(), of.parameters(), strict=True):
                old.copy_(new)
        else:
            into.load_state_dict(of.state_dict())

    @torch.no_grad()
    def _evaluate(self, model, episodes):
        """Whether the greedy actions of the agents are worth something finite."""
        model.eval()
        best = self._values(model, episodes).masked_fill(~episodes.available, -1e7).amax(-1)
        if not best.isfinite().all():
            raise FloatingPointError
        model.train()


_RETURNS = ("returns@value", "missed@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|index) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES: tuple[Case, ...] = (
    Case(
        "unavailable actions chosen",
        "bug",
        {"bars": False},
        ("greedy@value", "target.mixer.input@value"),
        rf"\bmask|\bgather|\bargmax|\bindex|indices|places? on along|another order|{_GIVEN}",
    ),
    Case(
        "padding in the loss",
        "bug",
        {"pads": False},
        ("loss@*", "missed@grad", "mixer.output@grad"),
        rf"\bmask|\bMul|{_GIVEN}|\bzeros?\b",
    ),
    Case(
        "rewards normed over padding",
        "bug",
        {"norms": "all"},
        ("rewards@value",),
        rf"\bmean|\bstd|\bSub|\bDiv|\bIndex|\bmask|a factor of its own|{_TIMES}",
    ),
    Case(
        "bootstrap beyond the end",
        "bug",
        {"ends": False},
        _RETURNS,
        rf"\bMul|\bmask|\bAdd(Backward|\b)|\bSub|terminated|bootstrap|{_GIVEN}",
    ),
    Case(
        "lambda without gamma",
        "bug",
        {"discounts": False},
        _RETURNS,
        rf"\bMul|\bAdd(Backward|\b)|\bStack|\bSub|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "roles of double Q exchanged",
        "bug",
        {"roles": "exchanged"},
        ("greedy@value", "target.mixer.input@value"),
        rf"\bgather|\bargmax|\bindex|computes it from|parents?\b|(target\.)?agent|{_GIVEN}",
        step=1,
    ),
    Case(
        "weights of the mixer not absolute",
        "bug",
        {"positive": False},
        (
            "mixer.output@value",
            "target.mixer.output@value",
            "bootstrap@value",
            "mixer.weight*@grad",
        ),
        r"\bAbs|other sign",
    ),
    Case(
        "hidden states carried over",
        "bug",
        {"carries": True},
        ("*agent.core@value",),
        r"\bhidden|\bhx\b|\bzeros?\b|\bcarr|step before|input:1|Backward\d? (hx|hidden)|\bGRU",
        step=1,
    ),
    Case(
        "mixer of the target never refreshed",
        "bug",
        {"refreshes": "agent"},
        ("target.mixer*@*", "bootstrap@value"),
        r"target\.mixer|\bmixer|\bparameters?\b|refresh|bootstrap",
        step=2,
    ),
    Case(
        "mixer not given to the optimizer",
        "bug",
        {"trained": "agent"},
        ("mixer*@updated", "mixer*@delta", "mixer*@opt.*", "mixer*@value"),
        r"optimi[sz]er|\bparams?\b|param_groups|\bmoves?\b|updated?\b|\bdelta\b",
    ),
    Case("recurrence over whole episodes", "benign", {"unrolls": "whole"}),
    Case("own recurrent cell", "benign", {"cell": "own"}),
    Case("last actions and agents looked up", "benign", {"names": "lookup"}),
    Case("hypernetworks joined", "benign", {"hypernets": "joined"}),
    Case("returns as a product", "benign", {"returned": "product"}),
    Case("agents one by one", "benign", {"apart": True}),
    Case("3 micro-batches, steps selected", "benign", {"parts": 3, "selected": True}),
    Case("own RMSprop", "benign", {"optimizer": "own"}),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value")),
    Case(
        "present actions for past ones",
        "data",
        {"last": "present"},
        ("*agent.input*@value", "agent.fc1@value"),
    ),
    Case("time steps computed twice", "equal", {"checkpointed": True}),
    Case("target copied in place", "equal", {"copies": True}),
    Case("evaluated meanwhile", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
)
