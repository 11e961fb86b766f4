"""What one rank is given or does otherwise, and what becomes of the gradients of all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

AT = 2


@dataclass(frozen=True)
class Training:
    """Two replicas that average their gradients; the session of each rank watches its own.

    reduces: what becomes of the gradients, the "mean", the "sum", or nothing ("own"). given: the
    rank whose data rank 1 is given from step AT on. again: whether the optimizer of rank 1 steps a
    second time in step AT. clip: of rank 1's gradients. scale: of rank 1's data.
    """

    reduces: str = "mean"
    given: int = 1
    again: bool = False
    clip: float = 0.0
    scale: float = 1.0


def train(how: Training, name: str, store) -> None:
    for rank in range(2):
        with anchorlib.start(name, store=store, rank=rank, recorder="thread") as session:
            both = []
            for _ in range(2):
                torch.manual_seed(0)
                model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
                both.append((model, torch.optim.Adam(model.parameters(), 1e-2)))
            session.watch(both[rank][0], tensors="*", optimizer=both[rank][1])
            for step in range(5):
                one_step(how, both, step)


def one_step(how: Training, both: list, step: int) -> None:
    data = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(step))
    for rank, (model, optimizer) in enumerate(both):
        optimizer.zero_grad()
        x = data[how.given if rank and step >= AT else rank] * (how.scale if rank else 1.0)
        (model(x) - 1).square().mean().backward()
    for own, other in zip(*(model.parameters() for model, _ in both), strict=True):
        whole = own.grad + other.grad
        if how.reduces != "own":
            own.grad, other.grad = (whole / (2 if how.reduces == "mean" else 1) for _ in range(2))
    if how.clip and step >= AT:
        nn.utils.clip_grad_norm_(both[1][0].parameters(), how.clip, foreach=False)
    for rank, (_, optimizer) in enumerate(both):
        for _ in range(2 if how.again and rank and step == AT else 1):
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()
CASES = {
    "no reduction": (
        {"reduces": "own"},
        "A averages it over the ranks, B leaves each rank its own, on every rank)",
    ),
    "a sum": (
        {"reduces": "sum"},
        "A averages it over the ranks, B sums it over the ranks, B is 2 times A, on every rank)",
    ),
    "one rank is given the data of the other": (
        {"given": 0},
        "the model was given something else, B is given here what A is given on rank 0",
    ),
    "one rank is given other data": ({"scale": 1.5}, "the model was given something else"),
    "a second step of one rank": (
        {"again": True},
        "(B's optimizer stepped again, without a backward pass in between, on rank 1 alone)",
    ),
    "one rank clips": ({"clip": 0.01}, "clipping, scaling or reduction, on rank 1 alone)"),
}
CLAIMS = (
    "over the ranks",
    "stepped again",
    "is given here",
    "zero_grad",
    "detach",
    "requires_grad",
)


@pytest.mark.parametrize("case", CASES)
def test_what_ranks_do_otherwise_is_told_and_nothing_else(case, once):
    changes, words = CASES[case]
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, **changes)))
    assert words in found.sentence
    others = [claim for claim in CLAIMS if claim in found.sentence and claim not in words]
    assert others == [], found.sentence
    assert "under another name" not in found.sentence
