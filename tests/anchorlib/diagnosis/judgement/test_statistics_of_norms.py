"""Running statistics, which training writes unseen: a later record shows them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A net with a batch norm that is evaluated before some steps, and not before the first.

    momentum: of the norm. began: what its running mean begins with. seed: of torch.
    """

    momentum: float = 0.1
    began: float = 0.0
    seed: int = 0
    evaluates: tuple[int, ...] = (1, 3)


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=how.momentum), nn.Linear(8, 1)
    )
    nn.init.constant_(model[1].running_mean, how.began)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(1)
    shown = torch.randn(16, 6, generator=draw)
    torch.manual_seed(how.seed)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(5):
            if step in how.evaluates:
                model.eval()
                with torch.no_grad():
                    model(shown)
                model.train()
            x = torch.randn(16, 6, generator=draw)
            optimizer.zero_grad()
            anchorlib.anchor(functional.mse_loss(model(x), x[:, :1]), "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("evaluates", [(1, 3), (3,)])
def test_another_momentum_is_a_fault_whether_an_evaluation_or_training_shows_it(evaluates, once):
    runs = once(Training(evaluates=evaluates)), once(Training(0.5, evaluates=evaluates))
    found = anchorlib.compare(*runs)
    assert found.verdict == "unexpected", found
    assert "momentum 0.1 | 0.5" in found.sentence
    assert found.origins[0].place.name.startswith("1.running_")
    assert found.origins[0].place.step == 1


def test_statistics_that_began_otherwise_are_no_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(began=0.3)))
    assert found.verdict == "suspect", found
    assert found.origins[0].cls in ("starts_unequal", "window_start")


def test_statistics_of_another_seed_are_not_called_a_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(0.5, seed=1)))
    assert found.verdict == "suspect", found
