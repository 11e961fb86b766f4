"""An operation between recorded tensors is computed again from values that a trace kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import anchorlib
from tests.by_hand import Applied, tanh_by_hand

Made = Callable[[], nn.Module]


@pytest.fixture
def replayed(tmp_path: Any) -> Callable[..., Any]:
    """The first origin of two trainings that differ in a layer of which nothing is recorded."""

    def train(run: str, middle: nn.Module, values: Any, dtype: torch.dtype) -> str:
        torch.manual_seed(0)
        inside = nn.Sequential(nn.Linear(48, 48), middle, nn.Linear(48, 48))
        model = nn.Sequential(nn.Linear(32, 48), inside, nn.Linear(48, 8)).to(dtype)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anchorlib.start(run, store=tmp_path) as session:
            session.watch(model, tensors=["0", "1", "2", "output"], optimizer=optimizer)
            session.trace(1, values=values)
            model(torch.randn(64, 32).to(dtype)).float().square().mean().backward()
            optimizer.step()
        return run

    def first(a: nn.Module, b: nn.Module, values: Any, dtype: torch.dtype = torch.float32) -> Any:
        names = train("a", a, values, dtype), train("b", b, values, dtype)
        [origin, *_] = anchorlib.compare(*names, store=tmp_path, replay=True).origins
        return origin

    return first


@pytest.mark.slow
def test_an_operation_that_no_anchor_is_next_to_is_replayed_from_values_that_were_kept(
    replayed: Any,
) -> None:
    origin = replayed(nn.Tanh(), tanh_by_hand(), "1.1")
    assert (origin.place.name, origin.place.kind) == ("0", "grad")
    assert (origin.ops_a.count("mm"), len(origin.ops_a)) == (2, 3), "three operations lie between"
    assert "g*fma(-y, y, 1)" in origin.replay.a
    assert origin.replay.b == ("g*(1 - y*y)",)
    assert origin.replay.nearer == "a"
    assert "tanh_backward in 1.1: A computes g*fma(-y, y, 1), B g*(1 - y*y)" in origin.why


def test_it_does_not_matter_which_run_wrote_it_by_hand_nor_in_which_precision(
    replayed: Any,
) -> None:
    origin = replayed(tanh_by_hand(), nn.Tanh(), "1.1", torch.bfloat16)
    assert any("g*(1 - y*y)" in formula for formula in origin.replay.a)
    assert "each step in bfloat16" in " ".join(origin.replay.a)
    assert origin.replay.nearer == "b"


def test_without_values_nothing_is_told_of_an_operation_inside(replayed: Any) -> None:
    assert replayed(nn.Tanh(), tanh_by_hand(), ()).replay is None


def test_values_of_the_operations_around_it_do_as_well(replayed: Any) -> None:
    origin = replayed(nn.Tanh(), tanh_by_hand(), ["1.0/mm", "1.2/mm", "1.1/tanh"])
    assert "tanh_backward in 1.1: A computes g*fma(-y, y, 1), B g*(1 - y*y)" in origin.why


INSIDE: dict[str, tuple[Made, Made, str]] = {
    "silu": (nn.SiLU, lambda: Applied(lambda x: x * torch.sigmoid(x)), "silu in 1.1"),
    "gelu": (
        nn.GELU,
        lambda: nn.GELU(approximate="tanh"),
        "A computes gelu, B gelu(approximate='tanh')",
    ),
    "layer norm": (
        lambda: nn.LayerNorm(48),
        lambda: nn.LayerNorm(48, eps=1e-2),
        "native_layer_norm in 1.1: A computes layer_norm(eps=1e-05), B layer_norm(eps=0.01)",
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_inside_a_module_is_replayed_too(replayed: Any, name: str) -> None:
    a, b, said = INSIDE[name]
    origin = replayed(a(), b(), "1.1")
    assert (origin.place.name, origin.place.kind) == ("1", "value")
    assert said in origin.why
    assert origin.replay.a
