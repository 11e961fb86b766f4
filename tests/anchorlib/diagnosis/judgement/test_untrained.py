"""Parameters that one run does not train, and gradients that one run cuts off."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A policy, judged by a critic, with an optimizer for each; steps are counted by the session.

    frozen: the layer that takes no gradient. cut: whether the critic's word is detached where it
    weighs the policy. zeroed: whether the critic's gradients are cleared. kinds: what is recorded.
    """

    frozen: str = ""
    cut: bool = True
    zeroed: bool = True
    kinds: str = "*"


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    models = {"policy": policy, "critic": critic}
    optimizers = {one: torch.optim.SGD(models[one].parameters(), lr=0.1) for one in models}
    if how.frozen:
        policy.get_submodule(how.frozen).requires_grad_(False)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        for one, model in models.items():
            session.watch(model, tensors=how.kinds, optimizer=optimizers[one], prefix=one)
        for _ in range(3):
            x = torch.randn(32, 6, generator=draw)
            value = critic(x)[:, 0]
            weight = value.detach() if how.cut else value
            losses = {
                "critic": (value - x.sum(1)).square().mean(),
                "policy": -(policy(x).log_softmax(1)[:, 0] * weight).mean(),
            }
            for one, loss in losses.items():
                anchorlib.anchor(loss, f"loss_{one}")
                if one != "critic" or how.zeroed:
                    optimizers[one].zero_grad()
            torch.stack(list(losses.values())).sum().backward()
            for one in losses:
                optimizers[one].step()
            session.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def compared(one, two):
    found = anchorlib.compare(one, two)
    return found, "; ".join([found.sentence, *(origin.why for origin in found.origins)])


@pytest.mark.parametrize("run", "AB")
def test_a_layer_that_one_run_freezes_is_a_fault_and_named(run, once):
    runs = [once(Training(frozen="2" if run == letter else "")) for letter in "AB"]
    found, said = compared(*runs)
    assert found.verdict == "unexpected", said
    assert f"{run} has no gradient of it, and leaves it: requires_grad?" in said


def test_a_run_that_recorded_no_gradients_is_not_said_to_have_none(once):
    _, said = compared(once(Training()), once(Training(kinds="*@updated")))
    assert "requires_grad" not in said


def test_a_term_of_a_loss_that_one_run_cuts_off_is_named(once):
    found, said = compared(once(Training()), once(Training(cut=False)))
    assert found.verdict == "unexpected", said
    assert "in B alone gradients come back to it from loss_policy (detach?)" in said


@pytest.mark.parametrize("fault", [{"zeroed": False}, {"frozen": "0"}])
def test_nothing_is_said_of_a_detach_where_both_have_it(fault, once):
    _, said = compared(once(Training()), once(replace(Training(), **fault)))
    assert "from loss_policy (detach?)" not in said


def test_a_gradient_left_over_is_told_though_other_optimizers_step_in_between(once):
    found, said = compared(once(Training()), once(Training(zeroed=False)))
    assert found.verdict == "unexpected", said
    assert "zero_grad? B takes A's gradient and its own of the step before" in said
