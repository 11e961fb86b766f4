"""Samples of a step that B deals to its micro-batches otherwise, beside an evaluation of a copy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once

SAID = "B deals a step's samples to its passes otherwise"
PIXELS = 24


@dataclass(frozen=True)
class Training:
    """Images of one background in two micro-batches a step; a copy of the net judges others first.

    turned: whether a step's batch is turned round before it is cut. strange: whether the batches
    have other samples. scale: of the second micro-batch's loss. twice: which part of a step is
    read twice, in place of the other one.
    """

    turned: bool = False
    strange: bool = False
    scale: float = 1.0
    twice: int | None = None
    steps: int = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.act = nn.Linear(PIXELS, 16), nn.Tanh()
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.act(self.enter(x)))


def images(count: int, draw: torch.Generator) -> torch.Tensor:
    """Images that are mostly background, and so are alike."""
    return -1 + 0.5 * torch.rand(count, PIXELS, generator=draw)


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net()
    judge = deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shown, draw = images(6, torch.Generator().manual_seed(3)), torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(judge, tensors="*", prefix="judge")
        for _ in range(how.steps):
            judge(shown)
            batch = images(16, draw)
            batch = images(16, draw) if how.strange else batch
            parts = (batch.flip(0) if how.turned else batch).chunk(2)
            optimizer.zero_grad()
            for number, part in enumerate(parts):
                given = parts[how.twice] if how.twice is not None else part
                loss = functional.mse_loss(model(given)[:, 0], given.square().sum(1)) / 2
                loss = loss * (how.scale if number else 1.0)
                anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("back", [False, True], ids=["B turned", "A turned"])
def test_a_batch_that_is_turned_before_it_is_cut_is_compared_sample_by_sample(back, once):
    found = anchorlib.compare(once(Training(back)), once(Training(not back)))
    assert found.verdict in ("suspect", "expected"), found
    assert {origin.cls for origin in found.origins} == {"rounding"}
    assert found.sentence.count(SAID) == 1
    assert "another order" in found.sentence


def test_a_fault_behind_samples_that_are_dealt_otherwise_is_found(once):
    found = anchorlib.compare(once(Training()), once(Training(turned=True, scale=1.01)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "loss"


def test_passes_with_equal_samples_stay_apart_so_that_a_fault_has_its_pass(once):
    found = anchorlib.compare(once(Training()), once(Training(scale=1.01)))
    assert SAID not in found.sentence
    first = found.origins[0].place
    assert (first.name, first.pass_index) == ("loss", 1)


@pytest.mark.parametrize("twice", [0, 1])
def test_a_part_that_is_read_twice_is_not_the_same_samples(twice, once):
    found = anchorlib.compare(once(Training()), once(Training(twice=twice)))
    assert SAID not in found.sentence
    assert found.origins[0].place.name == "input"
    assert found.origins[0].place.pass_index == 1 - twice


def test_samples_that_share_a_background_are_other_data_whatever_was_computed_before(once):
    found = anchorlib.compare(once(Training()), once(Training(strange=True)))
    assert found.verdict == "suspect", found
    first = found.origins[0]
    assert (first.place.name, first.cls) == ("input", "starts_unequal")
