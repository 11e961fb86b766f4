"""A loss that is added up from other terms, and divided by another number, is no other formula."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

PLACES = 9


@dataclass(frozen=True)
class Training:
    """A net that tells how far apart any two places are, the same both ways.

    pairs: the terms of the loss, "both" halves of the map, the "upper" one, or the upper one
    "twice". count: of the terms by which it is divided, "own" or "both".
    """

    pairs: str = "both"
    count: str = "own"


class Distances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x):
        found = self.left(x) @ self.right(x).T
        return (found + found.T) / 2


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Distances()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    draw = torch.Generator().manual_seed(1)
    ones = torch.ones(PLACES, PLACES, dtype=torch.bool)
    both, upper = ones.triu(1) | ones.tril(-1), ones.triu(1)
    terms = both if how.pairs == "both" else upper
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(PLACES, 6, generator=draw)
            optimizer.zero_grad()
            missed = (model(x) - torch.cdist(x, x)).square()
            total = (missed * terms).sum() * (2 if how.pairs == "twice" else 1)
            loss = total / int((terms if how.count == "own" else both).sum())
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()


def test_a_loss_of_half_a_symmetric_map_is_no_other_formula(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, pairs="upper")))
    assert found.verdict in ("suspect", "expected", "identical"), found


@pytest.mark.parametrize("how", [Training("upper", "both"), Training("twice")])
def test_a_loss_divided_by_the_number_of_other_terms_is_a_fault(how, once):
    found = anchorlib.compare(once(PLAIN), once(how))
    assert found.verdict == "unexpected", found
    assert [one.place.name for one in found.origins][:1] in (["loss"], ["output"]), found
