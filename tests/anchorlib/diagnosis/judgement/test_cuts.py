"""Work that one run cuts otherwise: records of other shapes, and the same behind them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.comparison import Comparison

Tensor = torch.Tensor


class Rows(nn.Module):
    """A layer that is called once, or once a row."""

    def __init__(self, cut: bool, sign: float) -> None:
        super().__init__()
        self.cut, self.sign = cut, sign
        self.wide, self.out = nn.Linear(40, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.cat([self.wide(row) for row in x.split(1)]) if self.cut else self.wide(x)
        return self.out((self.sign * made).tanh())


def compared(store: Any, sign: float = 1.0) -> Comparison:
    for run, cut, own in (("a", False, 1.0), ("b", True, sign)):
        torch.manual_seed(0)
        model = Rows(cut, own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                loss = model(torch.randn(6, 40, generator=draw)).square().mean()
                anchorlib.anchor(loss, "loss")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


def test_a_loop_over_the_rows_in_the_place_of_one_call_is_no_fault(tmp_path):
    found = compared(tmp_path)
    assert found.verdict in ("expected", "suspect"), found.sentence
    assert "as the runs cut their work otherwise" in " ".join(found.notes)


def test_a_loop_that_ends_in_something_else_is_one(tmp_path):
    found = compared(tmp_path, sign=-1.0)
    assert found.verdict == "unexpected"
    assert (found.origins[0].place.name, found.origins[0].cls) == ("wide", "not_rounding")
