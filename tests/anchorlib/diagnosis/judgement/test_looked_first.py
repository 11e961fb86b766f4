"""Forwards without gradients: their operations and their order are those of the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

WIDE = 12


def product(x: torch.Tensor) -> torch.Tensor:
    return x.log().sum()


def of_matrix(x: torch.Tensor) -> torch.Tensor:
    turned = torch.eye(WIDE) - 2 / WIDE  # a reflection, whose determinant is -1
    return torch.linalg.slogdet(turned @ x.diag())[1]


def off(x: torch.Tensor) -> torch.Tensor:
    return (x * (1 + 1e-4)).log().sum()


@dataclass(frozen=True)
class Training:
    """A flow whose norm begins, under `no_grad`, as the first batch has it.

    volume: the logarithm of a determinant. turned: whether batches come in the opposite order.
    tilted: whether the product's matrix has its diagonal twice. spoilt: whether only that first
    forward reads its batch in the opposite order of pixels.
    """

    volume: Callable[[torch.Tensor], torch.Tensor] = product
    turned: bool = False
    tilted: bool = False
    spoilt: bool = False


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDE))

    def forward(self, x):
        return x + self.shift


class Mix(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.randn(WIDE, WIDE) / WIDE)
        near_one = torch.linspace(0.5, 1.5, WIDE)
        self.diagonal = nn.Parameter(near_one / near_one.log().mean().exp())

    def forward(self, x):
        matrix = self.weight.tril(0 if self.how.tilted else -1) + self.diagonal.diag()
        return x @ matrix.T, self.how.volume(self.diagonal)


class Flow(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.norm, self.mix, self.out = Norm(), Mix(how), nn.Linear(WIDE, WIDE)

    @torch.no_grad()
    def begin(self, x):
        self.norm.shift.copy_(-x.mean(0))
        self.out(self.mix(self.norm(x))[0])

    def forward(self, x):
        h, volume = self.mix(self.norm(x.tanh()))
        return self.out(h), volume


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Flow(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(3):
            x = torch.randn(16, WIDE, generator=draw)
            x = x.flip(0) if how.turned else x
            if not step:
                first = x.tanh()
                model.begin(first.flip(1) if how.spoilt else first)
            z, volume = model(x)
            loss = z.square().sum(1).mean() - volume
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    "changes", [{"volume": of_matrix}, {"turned": True}], ids=["logarithm", "order"]
)
def test_what_is_rounding_in_training_is_rounding_in_a_forward_before_it(changes, once):
    found = anchorlib.compare(once(Training()), once(replace(Training(), **changes)))
    assert found.verdict == "suspect", found.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tilted": True}, "TrilBackward0 diagonal -1 | 0"),
        ({"volume": off}, "B has a Mul that the other lacks"),
        ({"tilted": True, "turned": True}, "TrilBackward0 diagonal -1 | 0"),
    ],
    ids=["argument", "operation", "argument, in another order"],
)
def test_a_fault_in_a_forward_before_training_is_told_by_the_operations_of_training(
    changes, words, once
):
    found = anchorlib.compare(once(Training()), once(replace(Training(), **changes)))
    assert found.verdict == "unexpected", found.sentence
    assert words in found.sentence


def test_another_order_that_only_a_forward_before_training_reads_is_not_excused(once):
    found = anchorlib.compare(once(Training()), once(replace(Training(), spoilt=True)))
    assert found.verdict == "suspect", found.sentence
    assert found.first.place.phase == "no_grad"
    assert "parameters differ before the first step" in found.sentence
    assert "is compared with its own" not in found.sentence
