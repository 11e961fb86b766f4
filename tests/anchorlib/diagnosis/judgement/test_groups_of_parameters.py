"""A parameter in another group of the optimizer: the settings are equal, and the update tells."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """Two groups: one decays, the other one does not, or learns faster.

    optimizer: a class of torch.optim. strays: the parameter that is in the second group though it
    belongs to the first; "" for none. by: what sets the groups apart.
    """

    optimizer: str = "AdamW"
    strays: str = ""
    by: str = "weight_decay"
    tensors: str = "*"


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1))
    nn.init.normal_(model[1].weight, 1.0, 0.1)
    second = [one for name, one in model.named_parameters() if one.ndim < 2 or name == how.strays]
    first = [one for one in model.parameters() if all(one is not other for other in second)]
    apart = {"weight_decay": (0.1, 0.0), "lr": (0.01, 0.03)}[how.by]
    groups = [{"params": list(g), how.by: x} for g, x in zip((first, second), apart, strict=True)]
    optimizer = getattr(torch.optim, how.optimizer)(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors=how.tensors, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8, generator=draw)).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()
            schedule.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_the_decay_that_a_parameter_lost_with_its_group_is_told(optimizer, once):
    right, wrong = Training(optimizer), Training(optimizer, strays="3.weight")
    found = anchorlib.compare(once(right), once(wrong))
    assert found.verdict == "unexpected", found
    assert f"{optimizer} weight_decay 0.1 | 0 for this parameter" in found.sentence
    assert {one.place.name for one in found.origins} == {"3.weight"}
    back = anchorlib.compare(once(wrong), once(right))
    assert f"{optimizer} weight_decay 0 | 0.1 for this parameter" in back.sentence


def test_another_rate_is_not_taken_for_a_decay(once):
    runs = [Training(by="lr"), Training(by="lr", strays="3.weight")]
    found = anchorlib.compare(*map(once, runs))
    assert found.verdict == "unexpected", found
    assert "weight_decay" not in found.sentence


class Shrinking(torch.optim.SGD):
    """SGD that takes a share of each parameter off in its step, of which no setting tells."""

    share = 0.0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                one.mul_(1 - self.share)
        return super().step(closure)


def shrunk(store, name: str, share: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(12, 12, dtype=dtype))
    model = nn.ParameterDict({"weight": weight})
    optimizer = Shrinking([weight], lr=0.01)
    optimizer.share = share
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            anchorlib.anchor((weight @ weight).abs().mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_a_share_that_no_setting_tells_is_told_of_real_parameters(tmp_path, dtype):
    shrunk(tmp_path, "a", 0.0, dtype)
    shrunk(tmp_path, "b", 0.001, dtype)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    told = "B takes 0.001 times the parameter more off: weight_decay?" in found.sentence
    assert told == (dtype is torch.float32)
