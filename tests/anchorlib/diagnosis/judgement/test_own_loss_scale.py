"""A loss scale that the program applies and takes off itself is no fault; one that is left is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.diagnosis.comparison import Comparison


def trained(  # a training is told by these
    store, run: str, *, everything: bool, scale: float, taken_off: float, clip: float, late: bool
) -> None:
    """late: whether gradients are clipped before the scale is taken off."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if everything else None, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = 3 * model(torch.randn(16, 8, generator=draw)).square().mean()
            anchorlib.anchor(loss, "loss")
            (loss * scale).backward()
            if late:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            for parameter in model.parameters():
                parameter.grad.div_(taken_off)
            if not late:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


def compared(store, **changes) -> Comparison:
    plain = {"everything": True, "scale": 1.0, "taken_off": 1.0, "clip": 1.0, "late": False}
    trained(store, "a", **plain | {"everything": changes.get("everything", True)})
    trained(store, "b", **plain | changes)
    return anchorlib.compare("a", "b", store=store)


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("scale", [1024.0, 0.25])
def test_a_power_of_two_that_is_taken_off_again_is_no_difference(tmp_path, everything, scale):
    found = compared(tmp_path, everything=everything, scale=scale, taken_off=scale)
    assert found.verdict == "expected", found.sentence
    assert not found.origins
    assert any("by the loss scale alone" in note for note in found.notes)


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize(
    "changes",
    [
        {"scale": 1024.0},
        {"scale": 1024.0, "clip": 1e-2},
        {"scale": 1024.0, "taken_off": 512.0},
        {"scale": 1024.0, "taken_off": 1024.0, "late": True},
        {"scale": 2.0, "clip": 1e6},
    ],
    ids=["left", "left, and clipped", "half taken off", "clipped before", "left, unclipped"],
)
def test_a_power_of_two_that_reaches_the_optimizer_is_a_fault(tmp_path, everything, changes):
    found = compared(tmp_path, everything=everything, **changes)
    assert found.verdict == "unexpected", found.sentence
