"""Programs that compute the same in another form: rounding, however much is made of it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib

Tensor = torch.Tensor
GRADIENTS = ("*@grad", "*@pass_grad")
EVERYTHING = ("*",)


class Attending(nn.Module):
    """Attention with a bias of its keys, whose gradient is zero but for rounding."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.norm, self.attention = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if self.form == "torch's":
            return self.out(x + self.attention(y, y, y, need_weights=False)[0])
        parts = functional.linear(y, self.attention.in_proj_weight, self.attention.in_proj_bias)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in parts.chunk(3, -1))
        made = (q @ k.mT / 8**0.5).softmax(-1) @ v
        return self.out(x + self.attention.out_proj(made.transpose(1, 2).flatten(2)))


class Normed(nn.Module):
    """A convolution of width 1 before a batch norm: by itself, or as a matrix product."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.wide = nn.Conv2d(3, 8, 3, padding=1)
        self.narrow, self.norm = nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16)
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wide(x).relu()
        if self.form == "torch's":
            h = self.narrow(h)
        else:
            h = functional.linear(h.movedim(1, -1), self.narrow.weight[:, :, 0, 0])
            h = (h + self.narrow.bias).movedim(-1, 1)
        return self.out(functional.hardswish(self.norm(h)).mean((2, 3)))


def trained(  # a training is told by these
    store: Any, run: str, model: nn.Module, shape: tuple[int, ...], watched: Any, eps: float = 1e-8
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors=watched, optimizer=optimizer)
        for _ in range(2):
            x = torch.randn(shape, generator=draw)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("make", "shape", "watched"),
    [
        (Attending, (8, 12, 32), EVERYTHING),
        (Attending, (8, 12, 32), GRADIENTS),
        (Normed, (16, 3, 16, 16), EVERYTHING),
    ],
    ids=["keys", "keys, gradients alone", "norm"],
)
def test_another_form_of_one_computation_is_no_alarm(
    tmp_path, make: Callable[[str], nn.Module], shape, watched
):
    for run, form in (("a", "torch's"), ("b", "by hand")):
        torch.manual_seed(0)
        trained(tmp_path, run, make(form), shape, watched)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {one.cls for one in found.origins} == {"rounding"}, found.sentence
    assert found.verdict == "suspect"


def test_an_update_that_leaps_where_gradients_are_steady_is_an_alarm(tmp_path):
    """The same two programs, but the second one's optimizer is told another eps."""
    for run, form, eps in (("a", "torch's", 1e-8), ("b", "by hand", 1e-3)):
        torch.manual_seed(0)
        trained(tmp_path, run, Attending(form), (8, 12, 32), EVERYTHING, eps=eps)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert "updated" in {one.place.kind for one in found.origins if one.cls == "not_rounding"}
