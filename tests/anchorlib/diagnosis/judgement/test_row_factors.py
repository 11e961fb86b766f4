"""A spread that is the rest of terms that cancel: rows are off by factors on both sides of 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.diagnosis.training import perturbed
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A net whose inputs are normed over each sample by the program, without a graph.

    spread: "differences" from the mean, or "squares" less the square of the mean. eps: that is
    added to the spread's square. half: whether the spread is rounded to float16. shifted: whether
    the mean is left out for the first samples.
    """

    spread: str = "differences"
    eps: float = 1e-6
    half: bool = False
    shifted: bool = False
    steps: int = 3


class Net(nn.Module):
    """A norm without a graph, whose result is weighted, and a layer."""

    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(16))
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        how = self.how
        with torch.no_grad():
            mean = x.mean(1, keepdim=True)
            if how.spread == "squares":
                square = x.square().mean(1, keepdim=True) - mean.square()
            else:
                square = (x - mean).square().mean(1, keepdim=True)
            spread = (square + how.eps).sqrt()
            spread = spread.half().float() if how.half else spread
            if how.shifted:
                mean = torch.cat([mean[:4] * 0, mean[4:]])
            normed = (x - mean) / spread
        return self.last(anchorlib.anchor(self.weight * normed, "normed"))


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    net = Net(how)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(net, tensors="*", optimizer=optimizer)
        for _ in range(how.steps):
            x = torch.randn(64, 16, generator=draw) + 6
            optimizer.zero_grad()
            anchorlib.anchor(net(x).square().mean(), "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def test_two_formulas_of_one_spread_round_otherwise(once):
    found = anchorlib.compare(once(Training()), once(Training("squares")))
    assert found.origins[0].place.name == "normed"
    assert found.origins[0].measure.error_eps > 16, "the terms of the spread cancel"
    assert {origin.cls for origin in found.origins} == {"rounding"}, found
    assert found.verdict == "suspect"


def test_what_follows_from_such_a_spread_is_inside_the_noise(once, tmp_path):
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            train(Training(), "a", tmp_path)
    noise = [anchorlib.open_run(f"a-noise{number}", tmp_path) for number in (1, 2, 3)]
    found = anchorlib.compare(once(Training()), once(Training("squares")), noise=noise)
    assert found.verdict == "expected", found


@pytest.mark.parametrize("fault", [{"eps": 3e-5}, {"half": True}, {"shifted": True}])
def test_another_eps_or_a_coarser_spread_or_another_mean_is_a_fault(fault, once):
    found = anchorlib.compare(once(Training()), once(replace(Training(), **fault)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "normed"
