"""What an optimizer held otherwise is told: lost moments, another count of steps, some of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A training of two steps that goes on for six more as another run, from restored state.

    loses: the kinds of state that are set to zero, and of_: the parameters that lose them, by a
    prefix. fresh: whether the optimizer is a new one. lr: of the second run. made: the optimizer.
    resumes: whether the second run alone is recorded, or both steps of the first as well.
    """

    loses: tuple[str, ...] = ()
    of_: str = ""
    fresh: bool = False
    lr: float = 1e-2
    made: str = "AdamW"
    resumes: bool = True


def made(how: Training, model: nn.Module) -> torch.optim.Optimizer:
    if how.made == "SGD":
        return torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, weight_decay=0.1)
    return torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.8, 0.99))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    anchorlib.anchor((model(x) - 1).square().mean(), "loss").backward()
    optimizer.step()


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = made(how, model)
    if how.resumes:
        for number in range(2):
            step(model, optimizer, number)
        optimizer = made(how, model) if how.fresh else optimizer
        optimizer.param_groups[0]["lr"] = how.lr
        for called, parameter in model.named_parameters():
            for kind in how.loses if called.startswith(how.of_) else ():
                optimizer.state[parameter][kind].zero_()
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for number in range(2 if how.resumes else 0, 8):
            step(model, optimizer, number)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def said(one: Training, two: Training, once) -> str:
    found = anchorlib.compare(once(one), once(two))
    assert found.verdict not in ("identical", "expected"), found
    return "; ".join([found.sentence, *(origin.why for origin in found.origins)])


FAULTS = {
    "a new optimizer": (
        {"fresh": True},
        ("opt.step 3 | 1", "exp_avg and exp_avg_sq begin at zero"),
    ),
    "half of its state": ({"loses": ("exp_avg_sq",)}, ("B's exp_avg_sq begins at zero",)),
    "another count": ({"loses": ("step",)}, ("opt.step 3 | 1",)),
    "of some": (
        {"loses": ("exp_avg",), "of_": "2."},
        ("B's exp_avg begins at zero", "of 2.* alone"),
    ),
}
CLAIMS = ("opt.step", "at zero", " alone")


@pytest.mark.parametrize("resumed", [True, False], ids=["both resumed", "of a whole run"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_optimizer_lost_is_told(fault, resumed, once):
    changes, words = FAULTS[fault]
    told = said(Training(resumes=resumed), replace(Training(), **changes), once)
    assert [word for word in words if word not in told] == [], told
    assert [claim for claim in CLAIMS if claim in told and claim not in " ".join(words)] == []


def test_momentum_that_was_lost_is_told_though_weights_decay(once):
    plain = Training(made="SGD")
    assert "B's momentum_buffer begins at zero" in said(plain, replace(plain, fresh=True), once)
    assert "A's momentum_buffer begins at zero" in said(replace(plain, fresh=True), plain, once)


@pytest.mark.parametrize("made", ["AdamW", "SGD"])
def test_another_learning_rate_is_no_lost_state(made, once):
    plain = Training(made=made)
    told = said(plain, replace(plain, lr=2e-2), once)
    assert [claim for claim in CLAIMS if claim in told] == [], told
