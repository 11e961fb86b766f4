"""Faults that leave no more than rounding where they stand: what both runs state decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.judgement.changes.operations import Operation, other_number

Tensor = torch.Tensor


class Scaled(nn.Module):
    """A scale that a norm takes out again, one behind it, and a sum of either order."""

    def __init__(self, scale: float, late: float, turned: bool) -> None:
        super().__init__()
        self.scale, self.late, self.turned = scale, late, turned
        self.wide, self.norm, self.out = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.linear(x.flip(-1), self.wide.weight.flip(-1), self.wide.bias)
        h = h if self.turned else self.wide(x)
        return self.out(self.norm(h.tanh() * self.scale).relu() * self.late)


def trained(  # a training is told by these
    store: Any,
    run: str,
    *,
    scale: float = 1.5,
    late: float = 1.0,
    turned: bool = False,
    low: bool = False,
    divided: int = 1,
    **settings: float,
) -> None:
    torch.manual_seed(0)
    model = Scaled(scale, late, turned)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **settings)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            made = model(torch.randn(24, 16, generator=draw))
            made = made.bfloat16() if low else made
            target = torch.randint(0, 8, (24,), generator=draw)
            loss = anchorlib.anchor(functional.cross_entropy(made, target), "loss")
            optimizer.zero_grad()
            (loss / divided).backward()
            optimizer.step()


def compared(store: Any, **changes: Any) -> Comparison:
    trained(store, "a")
    trained(store, "b", **changes)
    return anchorlib.compare("a", "b", store=store)


def test_another_number_is_no_rounding_where_a_norm_takes_it_out_again(tmp_path):
    found = compared(tmp_path, scale=1.501)
    (origin,) = found.origins
    assert (origin.place.name, origin.cls) == ("norm", "not_rounding")
    assert "MulBackward0 other 1.5 | 1.501" in found.sentence
    assert found.verdict == "unexpected"


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"eps": 1e-5}, {"weight_decay": 0.3}])
def test_an_optimizer_that_was_told_otherwise_is_an_origin_behind_rounding(tmp_path, changed):
    found = compared(tmp_path, turned=True, **changed)
    assert [one.cls for one in found.origins] == ["rounding", "not_rounding"]
    assert found.origins[1].place.kind == "delta"
    assert f"AdamW {next(iter(changed))} " in found.sentence


def test_an_optimizer_whose_updates_are_no_further_apart_is_none(tmp_path):
    found = compared(tmp_path, turned=True, eps=1.001e-8)
    assert [one.cls for one in found.origins] == ["rounding"]


def test_one_cast_in_a_run_that_trains_in_float32_is_no_rounding(tmp_path):
    found = compared(tmp_path, low=True)
    assert "B has a ToCopy that the other lacks" in found.sentence
    assert found.verdict == "unexpected"


def test_backward_that_begins_with_another_number_tells_how_often_it_is_the_others(tmp_path):
    trained(tmp_path, "a", divided=4)
    trained(tmp_path, "b")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "B is 4 times A: 0.25 | 1" in found.sentence


@pytest.mark.parametrize(
    ("a", "b", "other"),
    [
        (["other=1.5"], ["other=1.6"], True),
        (["other=0.3535533905932738"], ["other=0.35355338"], False),
        (["other=2", "other=0.3"], ["other=4", "other=0.15"], False),
        (["approximate='none'"], ["approximate='tanh'"], True),
        (["dim=(1,), correction=1"], ["dim=(1,), correction=0"], True),
        (["dim=(1,)"], ["dim=(0,)"], False),
        (["other=2"], [""], False),
        (["other=2"], ["other=2", "other=3"], False),
    ],
)
def test_one_number_of_one_operation_is_another_formula(a, b, other):
    """Two numbers may make up for one another; of the axis, shapes and bits tell."""
    one, two = ([Operation("MulBackward0", told) for told in side] for side in (a, b))
    assert other_number(one, two) is other


@pytest.mark.slow
def test_another_number_behind_rounding_is_an_origin_of_its_own(tmp_path):
    found = compared(tmp_path, turned=True, late=1.00001)
    assert [(one.place.name, one.cls) for one in found.origins] == [
        ("norm", "rounding"),
        ("out", "not_rounding"),
    ]
    assert "MulBackward0 other 1 | 1.00001" in found.sentence
