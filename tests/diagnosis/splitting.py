"""One training, whose steps are made at once, in several passes, or on several ranks.

Ranks are recorded one after the other: each knows what the others' gradients are.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import anchorlib

BATCH = 16
Sample = tuple[torch.Tensor, torch.Tensor]


class Dense(nn.Module):
    """Linear layers, a norm and an activation."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first = nn.Linear(12, 64)
        self.norm = nn.LayerNorm(64, eps=1e-2 if fault == "norm" else 1e-5)
        self.act = nn.GELU(approximate="tanh" if fault == "act" else "none")
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.norm(self.first(x))))


class Words(nn.Module):
    """Embeddings, one of which no batch axis has, and time before the batch."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(6, 16)
        self.norm = nn.LayerNorm(16, eps=1e-2 if fault == "norm" else 1e-5)
        self.act = nn.SiLU() if fault == "act" else nn.GELU()
        self.last = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = (x[:, :6].abs() * 10).long() % 32
        h = (self.tokens(numbers) + self.places(torch.arange(6))).transpose(0, 1)
        return self.last(self.act(self.norm(h))).mean(0)


class Images(nn.Module):
    """A convolution and a group norm."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8, eps=1e-2 if fault == "norm" else 1e-5)
        self.act = nn.LeakyReLU(0.2 if fault == "act" else 0.01)
        self.last = nn.Linear(8 * 12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.norm(self.conv(x.view(-1, 1, 3, 4)))).flatten(1))


class Carrying(Dense):
    """What a sample is depends on those before it in the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.norm(self.first(x)).cumsum(0)))


class Dropping(Dense):
    """Elements drop out."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.drop(x))


class Normed(Dense):
    """A norm over the batch, and samples taken apart into their halves."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.norm = nn.BatchNorm1d(32, eps=1e-2 if fault == "norm" else 1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = self.act(self.norm(self.first(x).view(-1, 32)))
        return self.last(halves.view(len(x), 64))


class Turning(Dense):
    """With a fault the samples are in another order from the first layer on."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.first = nn.Sequential(self.first, Turn(by=len(fault)))


class Turn(nn.Module):
    """What it is given, `by` so many samples later."""

    def __init__(self, *, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(self.by, 0)


ORDERED: dict[str, Callable[[str], nn.Module]] = {
    "carrying": Carrying,
    "dropping": Dropping,
    "normed": Normed,
    "turning": Turning,
}
NETS: dict[str, Callable[[str], nn.Module]] = {"dense": Dense, "words": Words, "images": Images}


@dataclass(frozen=True)
class Splitting:
    """How a training splits its steps.

    passes, ranks: into how many. loss: "mean" of each part, its "share" of the whole's mean as if
    all parts were as large, the share by its number of samples ("weighed"), or the "sum". reduce:
    what becomes of the gradients: "mean", "sum" or "none". fault: of the net, "norm" or "act".
    dealt: the samples in "block"s, in turn ("strided"), or all of them to each part ("all").
    shuffled: whether a batch has its samples in another order, and "x" of the inputs alone, so that
    they come with others' targets. tells: whether the loss of each part is recorded before it is
    divided, too.
    """

    net: str = "dense"
    passes: int = 1
    ranks: int = 1
    loss: str = "share"
    reduce: str = "mean"
    fault: str = ""
    dealt: str = "block"
    shuffled: str = ""
    tells: bool = False
    steps: int = 2
    seed: int = 0

    def but(self, **changes: Any) -> Splitting:
        """Another."""
        return replace(self, **changes)


def draw_splitting(seed: int) -> Splitting:
    """A split training."""
    draw = random.Random(f"splitting {seed}")
    passes, ranks = draw.choice([(2, 1), (4, 1), (1, 2), (1, 4), (2, 2)])
    return Splitting(
        list(NETS)[seed % len(NETS)],
        passes,
        ranks,
        draw.choice(["share", "sum"]) if ranks == 1 else "mean",
        dealt=draw.choice(["block", "strided"])
        if ranks * passes in (2, 4) and passes in (1, 4)
        else "block",
        seed=seed,
    )


def train(one: Splitting, name: str, store: Any, **options: Any) -> None:
    """Records the training as the run `name`. options: of `watch`."""
    for rank in range(one.ranks):
        torch.manual_seed(one.seed)
        model = (NETS | ORDERED)[one.net](one.fault)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        data = torch.Generator().manual_seed(one.seed)
        with anchorlib.start(name, store=store, rank=rank) as session:
            session.watch(model, tensors="*", optimizer=optimizer, **options)
            for _ in range(one.steps):
                x, y = (torch.randn(BATCH, size, generator=data) for size in (12, 8))
                dealt = torch.Generator().manual_seed(1)
                order = (
                    torch.randperm(BATCH, generator=dealt) if one.shuffled else torch.arange(BATCH)
                )
                step(one, model, rank, (x[order], y if one.shuffled == "x" else y[order]))
                optimizer.step()
                optimizer.zero_grad()


def step(one: Splitting, model: nn.Module, rank: int, whole: Sample) -> None:
    others = [other for other in range(one.ranks) if other != rank]
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for other in others:
        shadow = (NETS | ORDERED)[one.net](one.fault)
        shadow.load_state_dict(copy.deepcopy(model.state_dict()))
        backward(one, shadow, other, whole, anchored=False)
        for total, p in zip(sums, shadow.parameters(), strict=True):
            total.add_(p.grad)
    backward(one, model, rank, whole, anchored=True)
    if not others or one.reduce == "none":
        return
    for total, p in zip(sums, model.parameters(), strict=True):
        p.grad += total
        if one.reduce == "mean":
            p.grad /= one.ranks


def backward(one: Splitting, model: nn.Module, rank: int, whole: Sample, *, anchored: bool) -> None:
    for x, y in parts(one, rank, whole):
        loss = (model(x) - y).square()
        loss = loss.sum() if one.loss == "sum" else loss.mean()
        # The mean over ranks is taken by the reduction.
        shared = one.loss == "share" or (one.loss == "mean" and one.ranks > 1)
        if anchored and one.tells:
            anchorlib.anchor(loss, "of_part")
        loss = loss / one.passes if shared else loss
        loss = loss * (len(x) / BATCH) if one.loss == "weighed" else loss
        if anchored:
            anchorlib.anchor(loss, "loss")
        loss.backward()


def parts(one: Splitting, rank: int, whole: Sample) -> Iterator[Sample]:
    count = one.ranks * one.passes
    for number in range(one.passes):
        place = rank * one.passes + number
        if one.dealt == "all":
            yield whole
        elif one.dealt == "strided":
            yield tuple(t[place::count] for t in whole)  # type: ignore[misc]
        else:
            yield tuple(t.chunk(count)[place] for t in whole)  # type: ignore[misc]
