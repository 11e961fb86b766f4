"""A learned simulator of particles: drops that fall in a box, pushed by a paddle."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
)
from tests.diagnosis.workloads.simulator_net import Simulator

_FRAMES = 6
"""Frames that the net is given; it tells the one behind them."""
_LONG = 26
_LEARNT, _HELD = 9, 2
_FLUID, _PADDLE = 0, 1
_WARM = 2
"""Batches that the normalisers see before the first step."""
_FLOOR = 0.01
"""What the learning rate falls to, as a share."""


@dataclass(frozen=True)
class Simulation(Workload):
    """Drops have the shapes of digits; noise that walks is added to the frames the net is given.

    noise: how far the velocity of the last frame has walked, as a spread.
    walks: the noise of each frame is the last one's over the "root" of their number, or as large
        as the "last" one. adjusts: whether the next frame is moved by the noise of the last one.
    limit: batches that the normalisers see. spreads: about the "mean" or about "zero".
    rests: whether rollouts are made in eval mode.
    separates: whether the examples of a batch are apart in the graph. clips_walls: whether
        distances to walls end at the radius. pools: messages are summed, or a "mean". pools_at:
        the "receivers" or the "senders". edges_add: whether messages are added to edges.
    masks: whether the paddle has no loss.
    falls: steps in which the rate falls tenfold. schedules: it changes each "step" or "epoch".
    parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    search, normalising, gathers, pads, keeps, second, grad_mode: other ways to write the same
        mathematics; pools: the "product" with the incidence matrix too.
    """

    steps: int = 5
    batch: int = 4
    lr: float = 5e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    evaluates: bool = True
    noise: float = 3e-3
    walks: str = "root"
    adjusts: bool = True
    limit: int = 1000
    spreads: str = "mean"
    rests: bool = True
    separates: bool = True
    clips_walls: bool = True
    pools: str = "sum"
    pools_at: str = "receivers"
    edges_add: bool = True
    masks: bool = True
    falls: float = 5.0
    schedules: str = "step"
    parts: int = 1
    low: bool = False
    search: str = "pairs"
    normalising: str = "plain"
    gathers: str = "before"
    pads: bool = False
    keeps: str = "all"
    second: str = "velocities"
    grad_mode: str = "no_grad"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Simulator(self)
            self._warm(model)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: _FLOOR + (1 - _FLOOR) * 0.1 ** (step / self.falls)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, examples in enumerate(self._examples(seed)):
                if self.evaluates and step % 2 == 1:
                    self._evaluate(model)
                clear(optimizer, self)
                fluid = sum((kinds == _FLUID).sum() for *_, kinds in examples)
                whole = fluid if self.masks else sum(len(kinds) for *_, kinds in examples)
                size = self.batch // self.parts
                for at in range(0, self.batch, size):
                    self._learn(model, _collated(examples[at : at + size]), whole)
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()

    @torch.no_grad()
    def _warm(self, model):
        """Let the normalisers see a few windows."""
        for window, following, _ in _windows()[:: len(_windows()) // _WARM][:_WARM]:
            model.velocities(window.diff(dim=1))
            model.accelerations(self._acceleration(window, following))

    def _examples(self, seed):
        """Windows with noise, what follows them, and the kinds of their particles."""
        windows = _windows()
        dealing = torch.Generator().manual_seed(37 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(windows), (self.batch,), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            examples = [self._noisy(*windows[at]) for at in chosen]
            yield examples[::-1] if self.turned else examples

    def _noisy(self, window, following, kinds):
        """An example whose fluid has walked at random."""
        count = window.shape[1] - 1
        spread = self.noise / math.sqrt(count) if self.walks == "root" else self.noise
        velocities = (torch.randn(len(window), count, 2) * spread).cumsum(1)
        noise = functional.pad(velocities.cumsum(1), (0, 0, 1, 0))
        noise = noise * (kinds == _FLUID)[:, None, None]
        return window + noise, following + noise[:, -1] if self.adjusts else following, kinds

    def _acceleration(self, window, following):
        """By how much the velocity changes in the next frame."""
        if self.second == "velocities":
            return (following - window[:, -1]) - (window[:, -1] - window[:, -2])
        return following - 2 * window[:, -1] + window[:, -2]

    def _learn(self, model, part, whole):
        """The gradients of a part of the batch, of which so many particles have a loss."""
        window, following, kinds, graphs = part
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(window, kinds, graphs)
        acceleration = anchorlib.anchor(self._acceleration(window, following), "acceleration")
        target = anchorlib.anchor(model.accelerations(acceleration), "target")
        missed = (told.to(target.dtype) - target).square().sum(-1)
        if self.masks:
            missed = torch.where(kinds == _FLUID, missed, 0.0)
        loss = anchorlib.anchor(missed.sum() / whole, "loss")
        loss.backward()

    def _evaluate(self, model):
        """Roll out trajectories that are not learnt from."""
        with torch.inference_mode() if self.grad_mode == "inference" else torch.no_grad():
            model.train(not self.rests)
            anchorlib.anchor(self._rollout(model), "rollout_error")
            model.train()

    def _rollout(self, model, frames=3):
        """How far off particles are, in the mean square, in frames that follow each other."""
        held = _trajectories()[_LEARNT:]
        begun = [(places[:, :_FRAMES], places[:, _FRAMES], kinds) for places, kinds in held]
        window, _, kinds, graphs = _collated(begun)
        errors = []
        for frame in range(_FRAMES, _FRAMES + frames):
            wanted = torch.cat([places[:, frame] for places, _ in held])
            acceleration = model.accelerations.inverse(model(window, kinds, graphs))
            velocity = window[:, -1] - window[:, -2] + acceleration
            moving = (kinds == _FLUID)[:, None]
            told = torch.where(moving, window[:, -1] + velocity, wanted)
            errors.append((told - wanted).square().sum(-1)[kinds == _FLUID].mean())
            window = torch.cat((window[:, 1:], told[:, None]), 1)
        return torch.stack(errors).mean()


def _collated(examples):
    """Examples as one graph, with the number of its example for each particle."""
    window, following, kinds = (torch.cat(parts) for parts in zip(*examples, strict=True))
    sizes = torch.tensor([len(own) for *_, own in examples])
    return window, following, kinds, torch.arange(len(examples)).repeat_interleave(sizes)


def _windows():
    """All windows of the trajectories that are learnt from."""
    return [
        (places[:, at : at + _FRAMES], places[:, at + _FRAMES], kinds)
        for places, kinds in _trajectories()[:_LEARNT]
        for at in range(_LONG - _FRAMES)
    ]


def _trajectories():
    """Places (particle, frame, axis) and kinds of each trajectory."""
    return [(places.to(torch.get_default_dtype()), kinds) for places, kinds in _simulated()]


@cache
def _simulated():
    """Drops in the shapes of digits that fall on a paddle, computed in double precision."""
    drawing = torch.Generator().manual_seed(5)
    found = []
    for image in digits()[0][:: 1797 // (_LEARNT + _HELD)][: _LEARNT + _HELD]:
        drawn = torch.rand(4, generator=drawing, dtype=torch.float64)
        drop = (image > 0.2).nonzero().double() * 0.06 + 0.1 + 0.3 * drawn[:2]
        drop += 0.01 * torch.rand(drop.shape, generator=drawing, dtype=torch.float64)
        paddle = torch.stack(
            (torch.arange(6).double() * 0.05 + 0.1, torch.full((6,), 0.08, dtype=torch.float64)), 1
        )
        kinds = torch.tensor([_FLUID] * len(drop) + [_PADDLE] * len(paddle))
        places = torch.cat((drop, paddle))
        velocities = torch.zeros_like(places)
        velocities[kinds == _FLUID] = (drawn[2:] - 0.5) * 0.03
        velocities[kinds == _PADDLE] = torch.tensor([0.01, 0.0], dtype=torch.float64)
        frames = []
        for _ in range(_LONG):
            frames.append(places)
            for _ in range(4):
                pushed = _pushed(places, velocities) / 4
                velocities = velocities + pushed * (kinds == _FLUID)[:, None]
                places = places + velocities / 4
        found.append((torch.stack(frames, 1), kinds))
    return found


def _pushed(places, velocities):
    """The accelerations by weight, neighbours, friction between them, and walls."""
    apart = places[:, None] - places
    far = apart.norm(dim=-1, keepdim=True).clamp(min=1e-3)
    near = (1 - far / 0.07).clamp(min=0)
    pushed = (0.02 * apart / far * near).sum(1)
    dragged = (0.1 * (velocities - velocities[:, None]) * near).sum(1)
    walls = (0.05 - places).clamp(min=0) - (places - 0.95).clamp(min=0)
    return pushed + dragged + 0.3 * walls - torch.tensor([0.0, 1.5e-3], dtype=places.dtype)


_EDGES = ("encode_edges.0@value",)
_POOL = ("processor.0.pool@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|source) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "next frame without its noise",
        "bug",
        {"adjusts": False},
        ("acceleration@value", "accelerations@value", "target@value"),
        rf"\bAdd(Backward|\b)|\bSub(Backward|\b)|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "paddle has a loss",
        "bug",
        {"masks": False},
        ("loss@*", "output@grad"),
        rf"\b[Ww]here|\bmask|\bDiv|\bMul|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "examples joined in one graph",
        "bug",
        {"separates": False},
        _EDGES,
        r"\bshapes?\b|\bsizes?\b|\brows\b|\[\d+, ?\d+\]|\(\d+, ?\d+\)|\bIndex|indices|nonzero",
    ),
    Case(
        "distances to walls without an end",
        "bug",
        {"clips_walls": False},
        ("encode_nodes.0@value",),
        rf"clamp|\bclip|{_GIVEN}",
    ),
    Case(
        "spread about zero",
        "bug",
        {"spreads": "zero"},
        ("velocities@value",),
        rf"\bSub(Backward|\b)|\bDiv|\bsqrt|{_TIMES}|a factor of its own|{_GIVEN}",
    ),
    Case(
        "messages summed at senders",
        "bug",
        {"pools_at": "senders"},
        _POOL,
        rf"\bindex|index_?add|indices|scatter|{_ORDER}",
    ),
    Case(
        "mean of messages",
        "bug",
        {"pools": "mean"},
        _POOL,
        rf"\bDiv|\bmean\b|{_TIMES}|a factor of its own",
    ),
    Case(
        "edges forget what they were",
        "bug",
        {"edges_add": False},
        ("processor.0:1@value", "processor.1.gathered@value"),
        rf"\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "rollouts feed the normalisers",
        "bug",
        {"rests": False},
        ("velocities@value", "velocities.*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=1,
    ),
    Case("rate falls by epochs", "bug", {"schedules": "epoch"}, UPDATES, r"\blr\b", step=1),
    Case("neighbours by a tree", "benign", {"search": "tree"}),
    Case("messages summed by a product", "benign", {"pools": "product"}),
    Case("edges padded to a multiple of 256", "benign", {"pads": True}),
    Case("second differences", "benign", {"second": "places"}),
    Case("scale and shift for a mean and a spread", "benign", {"normalising": "folded"}),
    Case("example by example", "benign", {"parts": 4}, reference={"limit": _WARM}),
    Case("examples turned", "benign", {"turned": True}),
    Case(
        "nodes multiplied before they are gathered, low precision",
        "benign",
        {"gathers": "after"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("noise as large in each frame", "data", {"walks": "last"}, ("input@value",)),
    Case("neighbours by cdist", "equal", {"search": "cdist"}),
    Case("steps computed again", "equal", {"keeps": "edges"}),
    Case("rollouts in inference mode", "equal", {"grad_mode": "inference"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
