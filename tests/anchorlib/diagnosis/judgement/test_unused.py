"""What stands at padded places differs and no loss depends on it: no fault, unless one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.comparison import Comparison

Tensor = torch.Tensor


class Padded(nn.Module):
    """Eight places, of which the last two are padding that another run fills otherwise."""

    def __init__(self, filled: float, read: str) -> None:
        super().__init__()
        self.filled, self.read = filled, read
        self.one, self.two, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x = torch.cat([x[:, :6], x[:, 6:] + self.filled], 1)
        x = self.norm(x)
        if self.read == "detached":
            anchorlib.anchor(x.detach().mean() * 2, "statistic")
        return self.two(x)


def compared(store: Any, read: str) -> Comparison:
    for run, filled in (("a", 0.0), ("b", 1.0)):
        torch.manual_seed(0)
        model = Padded(filled, read)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                made = model(torch.randn(4, 8, 4))
                loss = made[:, : 8 if read == "by the loss" else 6].square().mean()
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


def test_values_on_which_no_loss_depends_are_no_fault(tmp_path):
    found = compared(tmp_path, "")
    assert found.verdict == "expected", found.sentence
    assert "in elements alone on which no loss depends" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("read", ["by the loss", "detached"])
def test_values_that_something_else_reads_are_a_fault(tmp_path, read):
    found = compared(tmp_path, read)
    assert found.verdict != "expected", found.sentence
    assert found.origins
