"""A tensor under two names, which one run alone takes apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anchorlib

Tensor = torch.Tensor


class Encoding(nn.Module):
    """It returns its code beside what it makes of it; parted: as a tensor of its own."""

    def __init__(self, parted: bool) -> None:
        super().__init__()
        self.parted = parted
        self.code, self.out = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.code(x)
        return self.out(code.tanh()), code.clone() if self.parted else code


def trained(store: Any, run: str, *, parted: bool, weight: float = 0.1) -> None:
    torch.manual_seed(0)
    model = Encoding(parted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            x = torch.randn(8, 16, generator=draw)
            made, code = model(x)
            loss = anchorlib.anchor((made - x).square().mean() + weight * code.abs().mean(), "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("parted", [(False, True), (True, False)])
def test_what_comes_back_to_one_name_alone_is_compared_under_the_other(tmp_path, parted):
    for run, one in zip("ab", parted, strict=True):
        trained(tmp_path, run, parted=one)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "expected", found.sentence
    assert "2 records differ as one run parts two names of a tensor" in found.sentence


def test_another_gradient_of_it_is_told_of_the_first_name(tmp_path):
    trained(tmp_path, "a", parted=False)
    trained(tmp_path, "b", parted=True, weight=0.2)
    found = anchorlib.compare("a", "b", store=tmp_path)
    bad = [one.place.name for one in found.origins if one.cls == "not_rounding"]
    assert found.verdict == "unexpected"
    assert bad[0] in ("loss", "code")
