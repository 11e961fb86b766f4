"""The same elements in another order are made by code; other random numbers may be data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib


def train(name: str, store, weights: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    draw = torch.Generator().manual_seed(1)
    own = torch.Generator().manual_seed(3 if weights == "drawn" else 2)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=torch.optim.SGD(model.parameters(), 0.1))
        x = torch.randn(12, 16, generator=draw)
        of_data = x.flip(1) if weights == "turned" else x
        some = torch.randn(12, 16, generator=own) if weights in ("own", "drawn") else of_data
        anchorlib.anchor(some * 2, "weights")
        anchorlib.anchor((model(x) * some[:, :4]).square().mean(), "loss").backward()


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [("data", "turned", "unexpected"), ("own", "drawn", "suspect")],
)
def test_the_same_elements_in_another_order_are_no_chance(tmp_path, one, other, verdict):
    train("a", tmp_path, one)
    train("b", tmp_path, other)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found
    if other == "turned":
        assert found.origins[0].place.name == "weights", found
        assert "arranged otherwise" in found.sentence
