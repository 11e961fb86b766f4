"""Forwards that one run makes in eval mode and the other in training, one by one, are paired."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib


def attacked(store, run: str, *, attacks: str, evaluates: bool, trains: str = "train") -> None:
    """A model that is attacked, then trained by what the attack made.

    attacks, trains: the mode of the attack's forwards, and of the training's. evaluates: whether
    each step begins with an evaluation.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model[1].running_var.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(16, 8, generator=draw)
            labels = torch.randint(0, 3, (16,), generator=draw)
            if evaluates:
                model.eval()
                model(torch.randn(4, 8, generator=draw))
            model.train(attacks == "train")
            moved = x.clone()
            for _ in range(2):
                moved.requires_grad_()
                loss = functional.cross_entropy(model(moved), labels)
                (slope,) = torch.autograd.grad(loss, moved)
                moved = (moved + 0.1 * slope.sign()).detach()
            model.train(trains == "train")
            optimizer.zero_grad()
            functional.cross_entropy(model(moved), labels).backward()
            optimizer.step()


@pytest.mark.parametrize("evaluates", [True, False])
def test_an_attack_in_training_mode_is_found_in_its_first_forward(tmp_path, evaluates):
    attacked(tmp_path, "a", attacks="eval", evaluates=evaluates)
    attacked(tmp_path, "b", attacks="train", evaluates=evaluates)
    for pair, run in (("ab", "A"), ("ba", "B")):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence
        assert found.origins[0].place.name == "1", found.sentence
        assert f"{run} runs in eval mode from step 0" in found.sentence


def test_modes_that_differ_are_no_difference_where_nothing_depends_on_them(tmp_path):
    attacked(tmp_path, "a", attacks="eval", evaluates=True)
    attacked(tmp_path, "b", attacks="eval", evaluates=True)
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "identical"


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_model_that_is_left_in_eval_mode_is_found_in_what_it_trains(tmp_path, evaluates):
    attacked(tmp_path, "a", attacks="eval", evaluates=evaluates)
    attacked(tmp_path, "b", attacks="eval", evaluates=evaluates, trains="eval")
    for pair, run in (("ab", "B"), ("ba", "A")):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence
        assert found.origins[0].place.name == "1", found.sentence
        assert f"{run} runs in eval mode from step 0" in found.sentence
