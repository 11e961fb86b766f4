"""Scores that a program masks with -inf: infinities that are put on purpose are no overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

SAMPLES, CHOICES = 12, 6


@dataclass(frozen=True)
class Training:
    """Of each sample one choice after the other is taken, the likeliest of those that are left.

    turned: whether batches come in the opposite order. init: of the parameters. mask: which choices
    are masked, those that were "taken" or those that were "left". large: a factor of the scores.
    fill: the number at masked places. inside: whether the scorer takes the softmax, or the loss.
    temperature: by which scores are divided before they are masked. wanted: how many choices on is
    the one that is learnt.
    """

    turned: bool = False
    init: int = 0
    mask: str = "taken"
    large: float = 1.0
    fill: float = -torch.inf
    inside: bool = True
    temperature: float = 1.0
    wanted: int = 0


class Chooser(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.enter, self.score = how, nn.Linear(8, 16), nn.Linear(16, CHOICES)

    def forward(self, h, taken):
        masked = taken if self.how.mask == "taken" or not taken.any() else ~taken
        scores = self.how.large * self.score(h) / self.how.temperature
        scores = scores.masked_fill(masked, self.how.fill)
        return scores.log_softmax(-1) if self.how.inside else scores


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(how.init)
    model = Chooser(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(7)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(SAMPLES, 8, generator=draw)
            h = model.enter(x.flip(0) if how.turned else x).tanh()
            taken, chances = torch.zeros(SAMPLES, CHOICES, dtype=torch.bool), []
            for _ in range(3):
                told = model(h, taken)
                best = told.argmax(-1, keepdim=True)
                told = told if how.inside else told.log_softmax(-1)
                wanted = (best + how.wanted * ~taken.any()) % CHOICES
                chances.append(told.gather(-1, wanted))
                taken = taken.scatter(-1, best, True)
            optimizer.zero_grad()
            anchorlib.anchor(-torch.cat(chances, -1).mean(), "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def test_samples_in_another_order_are_masked_at_other_places(once):
    found = anchorlib.compare(once(Training()), once(Training(turned=True)))
    assert found.verdict in ("suspect", "expected"), found
    assert "another order" in found.sentence


def test_other_parameters_choose_otherwise_and_are_no_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(init=1)))
    assert found.verdict == "suspect", found
    assert {one.cls for one in found.origins} == {"starts_unequal"}


def test_a_mask_that_is_turned_round_is_a_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(mask="left")))
    assert found.verdict == "unexpected", found
    assert found.origins[0].cls == "not_rounding"


def test_scores_that_are_far_too_large_are_a_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(large=1e38)))
    assert found.verdict == "unexpected", found
    assert "1e+38" in found.sentence


@pytest.mark.parametrize("fill", [-torch.inf, -1e9, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("fault", [{"wanted": 1}, {"temperature": 1.02}])
def test_no_fault_hides_beside_large_numbers_of_a_mask(fill, fault, once):
    one = Training(fill=fill, inside=False)
    found = anchorlib.compare(once(one), once(replace(one, **fault)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == ("loss" if "wanted" in fault else "output"), found
