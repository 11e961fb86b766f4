"""A loss in float32 of logits in bfloat16 is judged as float32, however often they are widened."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib


def train(store, run: str, *, casts: int, wrong: bool = False, by_hand: bool = False) -> None:
    """A model under autocast; casts: how often the loss widens its logits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            x = torch.randn(16, 8, generator=draw)
            target = (torch.randn(16, 16, generator=draw) > 0).float()
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x)
            target = target.flip(0) if wrong else target
            first = logits.float()
            second = first if casts == 1 else logits.float()
            if by_hand:
                missed = (functional.softplus(first) - first * target).mean()
            else:
                missed = functional.binary_cross_entropy_with_logits(first, target)
            chances = second.sigmoid()
            both = (chances * target).sum(1)
            overlap = (2 * both + 1) / (chances.sum(1) + target.sum(1) + 1)
            optimizer.zero_grad()
            anchorlib.anchor(missed + (1 - overlap).mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize("casts", [1, 2])
def test_wrong_targets_are_no_rounding(tmp_path, casts):
    train(tmp_path, "a", casts=casts)
    train(tmp_path, "b", casts=casts, wrong=True)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence
        assert found.origins[0].place.name == "loss"


@pytest.mark.parametrize("casts", [1, 2])
def test_another_formula_is_rounding(tmp_path, casts):
    train(tmp_path, "a", casts=casts)
    train(tmp_path, "b", casts=casts, by_hand=True)
    train(tmp_path, "c", casts=3 - casts)
    for run in "bc":
        found = anchorlib.compare("a", run, store=tmp_path)
        assert found.verdict != "unexpected", found.sentence
