"""A model that code enters at its first module does equal work, if all that is learned is equal."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A critic with a penalty on the gradient of its input.

    by_hand: whether a formula makes the gradient, from the result of the critic's first layer.
    fault: what is wrong: another "weight" of the penalty, a "slope" of another formula, a penalty
    at other "points", or of a "half" of them.
    """

    by_hand: bool = False
    fault: str = ""


def penalty_of(critic: nn.Sequential, x: torch.Tensor, how: Training) -> torch.Tensor:
    x = (x + 0.1 if how.fault == "points" else x).requires_grad_()
    x = x[:8] if how.fault == "half" else x
    power = 1 if how.fault == "slope" else 2
    if how.by_hand:
        slope = 1 - critic[0](x).tanh() ** power
        made = (slope * critic[2].weight) @ critic[0].weight
    else:
        (made,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        made = made * (0.9 if how.fault == "slope" else 1.0)
    return (made.norm(dim=1) - 1).square().mean() * (2.0 if how.fault == "weight" else 1.0)


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(critic, tensors="*", optimizer=optimizer, prefix="critic")
        for _ in range(3):
            real, made = (torch.randn(16, 12, generator=draw) for _ in range(2))
            loss = critic(made).mean() - critic(real).mean()
            penalty = penalty_of(critic, 0.3 * real + 0.7 * made, how)
            optimizer.zero_grad()
            anchorlib.anchor(loss + 10 * penalty, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("turned", [False, True], ids=["B by hand", "A by hand"])
def test_a_penalty_by_a_formula_is_no_fault(turned, once):
    runs = once(Training(turned)), once(Training(not turned))
    found = anchorlib.compare(*runs)
    assert found.verdict in ("suspect", "expected", "identical"), found


@pytest.mark.parametrize("by_hand", [False, True], ids=["both", "B by hand"])
@pytest.mark.parametrize("fault", ["weight", "slope", "points", "half"])
def test_a_fault_of_a_penalty_by_a_formula_is_one(fault, by_hand, once):
    found = anchorlib.compare(once(Training()), once(Training(by_hand, fault)))
    assert found.verdict == "unexpected", found
