"""Anchored targets that a program moves by one number are its code, however few they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anchorlib
from tests.once import Once

PLACES = 9


@dataclass(frozen=True)
class Training:
    """A net that finds a place in a row, two samples after two.

    target: the place to find, as the "data" tell it, "behind" that but for places at 0, or "drawn"
    by the data's own generator, which a seed of its own may begin.
    batch: samples of a step. ignored: what stands for a place that is not learnt, every third one.
    """

    target: str = "data"
    seed: int = 0
    batch: int = 4
    ignored: int = -100


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, PLACES + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, drawn = torch.Generator().manual_seed(5), torch.Generator().manual_seed(how.seed)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(how.batch, 6, generator=data)
            places = torch.randperm(how.batch, generator=data) % PLACES
            if how.target == "drawn":
                places = torch.randint(0, PLACES, (how.batch,), generator=drawn)
            if how.target == "behind":
                places = places + (places > 0)
            if how.batch > 4:
                places[::3] = how.ignored
            optimizer.zero_grad()
            for some, wanted in zip(x.chunk(2), places.chunk(2), strict=True):
                anchorlib.anchor(wanted, "wanted")
                anchorlib.anchor(cross_entropy(model(some), wanted), "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def test_targets_moved_by_one_are_code(once):
    found = anchorlib.compare(once(Training()), once(Training("behind")))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "wanted"
    assert found.origins[0].cls == "not_rounding"


def test_targets_that_were_drawn_otherwise_are_other_data(once):
    found = anchorlib.compare(once(Training("drawn")), once(Training("drawn", seed=1)))
    assert found.verdict == "suspect", found
    assert found.origins[0].cls == "starts_unequal"


def test_targets_that_one_run_ignores_are_code(once):
    one = Training(batch=48)
    found = anchorlib.compare(once(one), once(replace(one, ignored=0)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "wanted"
    assert "where they differ A has -100, B 0" in found.sentence


def test_targets_that_share_memory_with_the_input_are_code_too(tmp_path):
    for run, ignored in (("a", -100), ("b", 0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(5)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                both = torch.randint(1, 12, (2, 8, 12), generator=data)
                both[1, :, 8:] = ignored
                tokens, targets = both  # two views of one tensor
                anchorlib.anchor(targets, "targets")
                optimizer.zero_grad()
                loss = cross_entropy(model(tokens).transpose(1, 2), targets)
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "targets"
