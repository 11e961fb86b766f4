"""Parameters that no optimizer holds, and optimizers that step when nothing was computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import anchorlib

Tensor = torch.Tensor
Move = Callable[[Tensor, Tensor], object]


class Taught(nn.Module):
    """A layer, and the copy of it that it is to agree with."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.copy = nn.Linear(12, 8), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.copy(x + 1)
        return (self.own(x) - target).square().mean()


def by_hand(copy: Tensor, own: Tensor) -> object:
    return copy.mul_(0.99).add_(own, alpha=0.01)


def at_once(copy: Tensor, own: Tensor) -> object:
    return copy.lerp_(own, 0.01)


def faster(copy: Tensor, own: Tensor) -> object:
    return copy.lerp_(own, 0.1)


def trained(store: Any, run: str, move: Move = by_hand, **at: int) -> None:
    """at: the step after which the optimizer steps `again`, or at which it is `left_out`.

    Or from which on the model is called without gradients first, `looks`.
    """
    torch.manual_seed(0)
    model = Taught()
    optimizer = torch.optim.SGD(model.own.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(3):
            if step >= at.get("looks", 3):
                with torch.no_grad():
                    model(torch.ones(16, 12))
            loss = anchorlib.anchor(model(torch.randn(16, 12, generator=draw)), "loss")
            optimizer.zero_grad()
            loss.backward()
            for _ in range(1 + (step == at.get("again")) - (step == at.get("left_out"))):
                optimizer.step()
            with torch.no_grad():
                for copy, own in zip(model.copy.parameters(), model.own.parameters(), strict=True):
                    move(copy, own)


def test_a_copy_that_code_moves_otherwise_is_a_fault_of_that_code(tmp_path):
    trained(tmp_path, "a")
    trained(tmp_path, "b", faster)
    found = anchorlib.compare("a", "b", store=tmp_path)
    first = found.origins[0]
    assert (first.place.name, first.place.step, first.cls) == ("copy.weight", 1, "not_rounding")
    assert "B's move of it since step 0, pass 0 is 10 times A's" in found.sentence
    assert "as a moving average it takes up own.weight with a share of 0.01 | 0.1" in found.sentence
    assert found.verdict == "unexpected"


def test_a_move_that_each_phase_records_is_told_as_one_move(tmp_path):
    trained(tmp_path, "a", looks=0)
    trained(tmp_path, "b", faster, looks=0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert all("is 10 times A's" in origin.why for origin in found.origins[:2]), found.origins
    trained(tmp_path, "c", at_once, looks=0)
    told = anchorlib.compare("a", "c", store=tmp_path)
    assert not any("move of it" in origin.why for origin in told.origins)


def test_the_same_move_in_another_form_is_rounding(tmp_path):
    trained(tmp_path, "a")
    trained(tmp_path, "b", at_once)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {one.cls for one in found.origins} == {"rounding"}, found.sentence
    assert found.verdict == "suspect"


def test_an_optimizer_that_steps_twice_on_one_gradient_is_told(tmp_path):
    trained(tmp_path, "a")
    trained(tmp_path, "b", again=0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "(B's optimizer stepped again, without a backward pass in between)" in found.sentence, (
        "and nothing else, such as a detach, is blamed"
    )
    assert found.verdict == "unexpected"
    other_way = anchorlib.compare("b", "a", store=tmp_path)
    assert "(A's optimizer stepped again, without a backward pass in between)" in other_way.sentence


def test_a_step_of_the_optimizer_that_is_left_out_is_told(tmp_path):
    trained(tmp_path, "a")
    trained(tmp_path, "b", left_out=1)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "1 backward pass reaches it in step 1 of A, 2 in B" in found.sentence
    assert "B's optimizer did not step before pass 1" in found.sentence
    assert (found.verdict, found.origins[0].place.step) == ("unexpected", 1)
