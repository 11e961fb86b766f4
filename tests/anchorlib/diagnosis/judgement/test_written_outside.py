"""A parameter that one run writes after the optimizer's step, behind an update that rounds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """Rows of a weight are kept at the norm that they began with.

    fused: the optimizer's implementation. when: the rows are put back "after" the optimizer's step,
    "before" it, or "never".
    """

    fused: bool = False
    when: str = "after"


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4))
    rows = model[0].weight
    size = rows.detach().norm(dim=1, keepdim=True)

    @torch.no_grad()
    def put_back(when: str) -> None:
        if when == how.when:
            rows.mul_(size / rows.norm(dim=1, keepdim=True))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=how.fused)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(16, 8, generator=draw)
            loss = functional.mse_loss(model(x), x[:, :4])
            anchorlib.anchor(loss, "loss").backward()
            put_back("before")
            optimizer.step()
            put_back("after")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("when", ["before", "never"])
def test_it_is_the_origin_and_what_follows_is_none(when, fused, once):
    found = anchorlib.compare(once(Training()), once(Training(fused, when)))
    assert found.verdict == "unexpected", found
    first = next(one.place for one in found.origins if one.cls == "not_rounding")
    assert (first.name, first.kind, first.step) == ("0.weight", "value", 1)
    assert "A alone writes it after the optimizer's step 0" in found.sentence


def test_another_implementation_of_the_optimizer_alone_is_no_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(fused=True)))
    assert found.verdict in ("suspect", "expected"), found


def averaged(store, name: str, *, since: int, fused: bool = False) -> None:
    """A training whose parameters are replaced by their average, which is evaluated at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    draw = torch.Generator().manual_seed(1)
    seen = []
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(16, 8, generator=draw)
            anchorlib.anchor(functional.mse_loss(model(x), x[:, :4]), "loss").backward()
            optimizer.step()
            if step >= since:
                seen.append([one.detach().clone() for one in model.parameters()])
        with torch.no_grad():
            for own, each in zip(model.parameters(), zip(*seen, strict=True), strict=True):
                own.copy_(torch.stack(each).mean(0))
            model(x)


def test_an_average_over_other_steps_that_is_put_in_at_the_end_is_a_fault(tmp_path):
    averaged(tmp_path, "a", since=2)
    averaged(tmp_path, "b", since=0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    assert (found.origins[0].place.name, found.origins[0].place.step) == ("0.weight", 4)
    assert "both write it after the optimizer's step 3, outside of that step" in found.sentence


def test_the_same_average_of_parameters_that_drifted_by_rounding_is_none(tmp_path):
    averaged(tmp_path, "a", since=2)
    averaged(tmp_path, "b", since=2, fused=True)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict in ("identical", "suspect", "expected"), found
