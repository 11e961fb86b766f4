"""A decision transformer: what a controller did, told of the returns that it was yet to have."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
    warmed,
)
from tests.diagnosis.workloads.trajectory import LONG, Planner


@dataclass(frozen=True)
class Imitator(Workload):
    """A point is driven to a goal; rewards are how near it is. Shorter trajectories are padded.

    to_go: how returns are summed: "flip" and "product" sum the rewards from a place on, "done"
        those up to it. rescale: what returns are divided by. late: by how
        many places the wanted actions come too late.
    weave: how tokens are put in turn; "cat" leaves kinds behind each other. timed: the kinds that
        have the time added, "all", all "at once" or "some". since: the first time. spread: of the
        embeddings of times.
    reads: which of three tokens an action is read from, 1: the state's.
    causal: whether later tokens are hidden, else earlier ones. ahead: later tokens that are seen.
    masks: whether padding is hidden. distance: how far "back" or "ahead" a key lies.
    root: what is divided by the root of the heads' size, "scores" or "all".
    over: what softmax is over, "keys" or "queries". dropout: its share.
    counts: what the loss is a mean over: "valid" places, "all" places, or "paths" first.
    all_decay: whether biases, norms and embeddings decay too. warmup: steps of rising rate.
    clip: of gradients.
    bounds: whether gradients are clipped when they are "unscaled" or "scaled".
    parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    attention, scores, packing, norming, bounded, keeps, missed, scale: other ways to write
        the same mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    to_go: str = "flip"
    rescale: float = 4.0
    late: int = 0
    weave: str = "stack"
    timed: str = "all"
    since: int = 0
    spread: float = 0.1
    reads: int = 1
    causal: bool = True
    ahead: int = 0
    masks: bool = True
    distance: str = "back"
    root: str = "scores"
    over: str = "keys"
    bounded: str = "tanh"
    dropout: float = 0.1
    counts: str = "valid"
    all_decay: bool = False
    warmup: int = 3
    clip: float = 0.25
    bounds: str = "unscaled"
    parts: int = 1
    low: bool = False
    attention: str = "own"
    scores: str = "matmul"
    packing: str = "apart"
    norming: str = "torch"
    keeps: str = "all"
    missed: str = "index"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Planner(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for paths in self._paths(seed):
                clear(optimizer, self)
                for part in cut(self.parts, *paths):
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                        told = model(*part)
                    loss = self._loss(told.to(part[0].dtype), part, paths[-1])
                    (anchorlib.anchor(loss, "loss") * self.scale).backward()
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: biases, norms, and all that is looked up."""
        named = [
            (one.ndim > 1 and "times" not in name and "far" not in name, one)
            for name, one in model.named_parameters()
        ]
        return [
            {
                "params": [one for deep, one in named if deep is kind],
                "weight_decay": self.weight_decay if kind or self.all_decay else 0.0,
            }
            for kind in (True, False)
        ]

    def _paths(self, seed):
        """Returns, states, actions, times and what is no padding, step by step."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            found = self._dealt(dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield tuple(one.flip(0) for one in found) if self.turned else found

    def _dealt(self, dealing):
        """Trajectories of 3 to 6 places, padded before they begin."""
        states, actions, rewards = self._driven(dealing)
        long = torch.randint(3, LONG + 1, (self.batch, 1), generator=dealing)
        times = torch.arange(LONG) - (LONG - long)
        valid = (times >= 0).to(states.dtype)
        times = times.clamp(min=0)
        states, actions = (
            part.gather(1, times[..., None].expand_as(part)) * valid[..., None]
            for part in (states, actions)
        )
        returns = self._summed(rewards.gather(1, times) * valid) * valid / self.rescale
        return returns[..., None], states, actions, times, valid

    def _driven(self, dealing):
        """Places, speeds and goals of points, how they are driven, and how near they come."""
        place, speed, goal = torch.randn(3, self.batch, 2, generator=dealing)
        speed, found = 0.3 * speed, []
        for _ in range(LONG):
            shaken = torch.randn(self.batch, 2, generator=dealing)
            action = torch.tanh(1.5 * (goal - place) - speed + 0.2 * shaken)
            state = torch.cat((place, speed, goal), 1)
            place, speed = place + 0.4 * speed, 0.9 * speed + 0.5 * action
            found.append((state, action, torch.exp(-(goal - place).norm(dim=1))))
        return [torch.stack(parts, 1) for parts in zip(*found, strict=True)]

    def _summed(self, rewards):
        if self.to_go == "done":
            return rewards.cumsum(1)
        if self.to_go == "product":
            return rewards @ torch.ones(LONG, LONG).tril()
        return rewards.flip(1).cumsum(1).flip(1)

    def _loss(self, told, part, whole):
        """A part's share of the mean square of what is missed."""
        *_, actions, _, valid = part
        missed = (told - actions.roll(-self.late, 1)).square().mean(2)
        if self.counts == "all":
            return missed.sum() / whole.numel()
        if self.counts == "paths":
            return ((missed * valid).sum(1) / valid.sum(1)).sum() / len(whole)
        if self.missed == "mask":
            return (missed * valid).sum() / whole.sum()
        if self.missed == "torch":
            chosen = valid.bool()
            missed = functional.mse_loss(told[chosen], actions[chosen])
            return missed * (valid.sum() / whole.sum())
        if self.missed == "paths":
            return sum(one @ seen / whole.sum() for one, seen in zip(missed, valid, strict=True))
        return missed[valid.bool()].sum() / whole.sum()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        if self.bounds == "scaled":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        for parameter in model.parameters():
            if self.scale != 1:
                parameter.grad.div_(self.scale)
        if self.bounds == "unscaled":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_INPUT = ("input@value", "woven.input@value", "woven.of_return*@value")
_WOVEN = ("woven@value", "blocks.0.input@value")
_MIXED = (
    "blocks.0.attention@value",
    "blocks.0.attention.out@value",
    "blocks.0.attention.out.input@value",
)
_READ = ("norm@value", "norm.input@value")
_LOSS = ("loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_MASK = r"\bmask|masked_fill|Softmax|softmax"
CASES = [
    Case(
        "returns of what was done",
        "data",
        {"to_go": "done"},
        _INPUT,
        step=0,
    ),
    Case(
        "returns not divided",
        "data",
        {"rescale": 1.0},
        _INPUT,
        step=0,
    ),
    Case(
        "actions one place late",
        "bug",
        {"late": 1},
        _LOSS,
        rf"targets? differ|\broll|{_GIVEN}|{_ORDER}",
        0,
    ),
    Case(
        "kinds of tokens behind each other",
        "bug",
        {"weave": "cat"},
        _WOVEN,
        rf"\b[Cc]at(Backward|\b)|\b[Ss]tack|{_ORDER}",
        0,
    ),
    Case(
        "time of states alone",
        "bug",
        {"timed": "some"},
        _WOVEN,
        rf"\bAdd(Backward|\b)|{_GIVEN}",
        0,
    ),
    Case(
        "times begin at one",
        "bug",
        {"since": 1},
        ("woven.times@value", "woven.times.input@value"),
        r"\bindices\b|\bindex|[Ee]mbedding",
        0,
    ),
    Case(
        "wide embeddings of times",
        "data",
        {"spread": 1.0},
        ("woven.times.weight@value",),
        step=0,
    ),
    Case(
        "read from actions",
        "bug",
        {"reads": 2},
        _READ,
        rf"\b[Ss]lice|\b[Ss]elect|\bindex|\bstart\b|{_ORDER}|{_GIVEN}",
        0,
    ),
    Case("earlier tokens hidden", "bug", {"causal": False}, _MIXED, rf"{_MASK}|tri[lu]", 0),
    Case("next token seen", "bug", {"ahead": 1}, _MIXED, rf"{_MASK}|tri[lu]", 0),
    Case("padding seen", "bug", {"masks": False}, _MIXED, _MASK, 0),
    Case(
        "distance ahead",
        "bug",
        {"distance": "ahead"},
        ("blocks.0.attention.far*@value",),
        rf"\bindices\b|\bIndex|{_ORDER}|\bclamp",
        0,
    ),
    Case("bias divided too", "bug", {"root": "all"}, _MIXED, rf"\bDiv|{_TIMES}|{_GIVEN}", 0),
    Case("softmax over queries", "bug", {"over": "queries"}, _MIXED, r"\bdim\b", 0),
    Case(
        "padding in the loss",
        "bug",
        {"counts": "all"},
        _LOSS,
        rf"\bmask|\bIndex|\bindices\b|\bSum|\bDiv|\bMul|{_GIVEN}",
        0,
    ),
    Case(
        "mean over trajectories first",
        "bug",
        {"counts": "paths"},
        _LOSS,
        rf"\bmask|\bdim\b|\bSum|\bDiv|\bMean|{_GIVEN}",
        0,
    ),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay", 0),
    Case(
        "clipped while scaled",
        "bug",
        {"bounds": "scaled"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
        0,
        {"scale": 1024.0},
    ),
    Case("returns by a triangle", "benign", {"to_go": "product"}),
    Case("times added at once", "benign", {"timed": "at once"}),
    Case("attention by torch with a bias", "benign", {"attention": "torch"}),
    Case("scores by einsum of divided queries", "benign", {"scores": "einsum"}),
    Case("one projection for three", "benign", {"packing": "joined"}),
    Case("loss by a mask", "benign", {"missed": "mask"}),
    Case("loss trajectory by trajectory", "benign", {"missed": "paths"}),
    Case("actions bounded by sigmoid", "benign", {"bounded": "sigmoid"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("trajectories turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("tokens written in turn", "equal", {"weave": "write"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
