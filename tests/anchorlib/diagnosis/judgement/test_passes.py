"""A step with a backward for each loss, beside one with a backward of their sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib

Tensor = torch.Tensor


class TwoHeads(nn.Module):
    """A body whose bias stands before a batch norm, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.mix = nn.Linear(16, 16)
        self.first, self.second = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(self.mix(torch.relu(self.norm(self.body(x)))))
        return self.first(state), self.second(state)


def train(store, run: str, *, apart: bool, low: bool, fault: str = "") -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, tensors="*")
        for step in range(2):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                first, second = model(torch.randn(32, 6))
            losses = [one.float().square().mean() for one in (first, 2 * second)]
            if fault == "weight":
                losses[1] = losses[1] * 1.1
            if apart:
                losses[0].backward(retain_graph=True)
                losses[1].backward()
            else:
                sum(losses).backward()
            if fault == "bias":
                model.mix.bias.grad *= 1.2
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if fault == "step":
                model.mix.weight.grad *= 1.003
            optimizer.step()


@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_gradients_of_one_backward_and_of_two_differ_by_rounding(tmp_path, low, order):
    train(tmp_path, order[0], apart=False, low=low)
    train(tmp_path, order[1], apart=True, low=low)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found


@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("fault", ["weight", "bias"])
def test_a_fault_beside_another_number_of_backwards_is_one(tmp_path, low, fault):
    train(tmp_path, "a", apart=False, low=low)
    train(tmp_path, "b", apart=True, low=low, fault=fault)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found


def test_what_is_done_to_gradients_of_as_many_backwards_does_not_round_as_they_do(tmp_path):
    """A factor of 1.003 is less than one eps of bfloat16."""
    train(tmp_path, "a", apart=False, low=True)
    train(tmp_path, "b", apart=False, low=True, fault="step")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
