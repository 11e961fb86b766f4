"""Anchored targets that a program moves by one number are its code, however few they are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anchorlib
from tests.once import Once

PLACES = 9


@dataclass(frozen=True)
class Training:
    """A net that finds a place in a row, two samples after two.

    target: the place to find, as the "data" tell it, "behind" that but for places at 0, or "drawn"
    by the data's own generator, which a seed of its own may begin.
    """

    target: str = "data"
    seed: int = 0


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, PLACES + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, drawn = torch.Generator().manual_seed(5), torch.Generator().manual_seed(how.seed)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(4, 6, generator=data)
            places = torch.randperm(PLACES, generator=data)[:4]
            if how.target == "drawn":
                places = torch.randint(0, PLACES, (4,), generator=drawn)
            if how.target == "behind":
                places = places + (places > 0)
            optimizer.zero_grad()
            for some, wanted in zip(x.chunk(2), places.chunk(2), strict=True):
                anchorlib.anchor(wanted, "wanted")
                anchorlib.anchor(cross_entropy(model(some), wanted), "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def test_targets_moved_by_one_are_code(once):
    found = anchorlib.compare(once(Training()), once(Training("behind")))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "wanted"
    assert found.origins[0].cls == "not_rounding"


def test_targets_that_were_drawn_otherwise_are_other_data(once):
    found = anchorlib.compare(once(Training("drawn")), once(Training("drawn", seed=1)))
    assert found.verdict == "suspect", found
    assert found.origins[0].cls == "starts_unequal"
