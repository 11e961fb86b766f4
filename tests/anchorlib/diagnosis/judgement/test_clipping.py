"""The norm to which each run clips is computed from the gradients that both recorded."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import anchorlib


def trained(
    store: Any, run: str, limit: float, factor: float = 1.0, *, passes: int = 1, **kinds: Any
) -> None:
    """Steps of some passes; kinds: what is recorded, by default no gradient of a single pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, **kinds)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.randn(16, 8)).pow(2).sum().backward()
            if limit:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            for parameter in model.parameters():
                parameter.grad.mul_(factor)
            optimizer.step()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ((1.0, 0.25), r"A clips the gradients' norm of \S+ to 1, B to 0.25"),
        ((1.0, 0.0), r"A alone clips the gradients' norm of \S+ to 1\b"),
        ((0.0, 5.0), r"B alone clips the gradients' norm of \S+ to 5\b"),
    ],
)
def test_the_limit_of_each_run_is_told(tmp_path, limits, said):
    for run, limit in zip("ab", limits, strict=True):
        trained(tmp_path, run, limit, tensors="*")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert re.search(said, found.sentence), found.sentence


def test_gradients_that_were_scaled_are_not_said_to_be_clipped(tmp_path):
    trained(tmp_path, "a", 0.0, tensors="*")
    trained(tmp_path, "b", 0.0, factor=0.3, tensors="*")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert "B is 0.3 times A" in found.sentence
    assert "clips" not in found.sentence


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ((1.0, 0.0), r"A clips the gradients' norm to 1, in B it is \d+\.\d"),
        ((0.0, 0.5), r"B clips the gradients' norm to 0.5, in A it is \d+\.\d"),
        ((1.0, 0.25), r"A clips the gradients' norm to 1, B to 0.25"),
    ],
)
def test_the_limit_is_told_of_micro_batches_by_what_the_optimizer_read(tmp_path, limits, said):
    for run, limit in zip("ab", limits, strict=True):
        trained(tmp_path, run, limit, passes=2)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert re.search(said, found.sentence), found.sentence
    assert "somewhere in" not in found.sentence
    assert "after backward" not in found.sentence


def test_micro_batches_whose_gradients_were_scaled_are_not_said_to_be_clipped(tmp_path):
    trained(tmp_path, "a", 0.0, passes=2)
    trained(tmp_path, "b", 0.0, factor=0.3, passes=2)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "B is 0.3 times A" in found.sentence
    assert "clips" not in found.sentence


def test_one_run_clips_to_a_norm_and_the_other_each_element(tmp_path):
    """Neither gradient is the sum of its passes: one is a multiple of it, the other is cut off."""
    trained(tmp_path, "a", 1.0, tensors="*")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start("b", store=tmp_path, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).pow(2).sum().backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "B clips each element of the gradient to 0.5" in found.sentence
