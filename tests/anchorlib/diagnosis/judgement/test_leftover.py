"""A gradient that was not cleared is told from one that was clipped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib

CLEARED = "zero_grad?"


def trained(folder, name: str, *, cleared=lambda _step: True, clip: float = 0.0, tensors="*"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with anchorlib.start(name, store=folder) as session:
        session.watch(model, tensors=tensors, optimizer=optimizer)
        for step in range(4):
            if cleared(step):
                optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(16, 8)).pow(2).sum().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


def compared(folder, tensors="*", **of_b):
    trained(folder, "a", tensors=tensors)
    trained(folder, "b", tensors=tensors, **of_b)
    return anchorlib.compare("a", "b", store=folder)


@pytest.mark.slow
@pytest.mark.parametrize("tensors", ["*", ["*@grad", "*@value", "*@updated"]])
def test_a_gradient_of_the_step_before_is_said_to_be_left_over(tmp_path, tensors):
    found = compared(tmp_path, tensors, cleared=lambda step: step != 2)
    assert found.first.place.step == 2
    assert f"{CLEARED} B takes A's gradient and its own of the step before" in found.sentence
    assert "clipping" not in found.sentence


def test_it_may_be_the_first_run_that_did_not_clear_its_gradients(tmp_path):
    trained(tmp_path, "b", cleared=lambda step: step != 1)
    trained(tmp_path, "a")
    found = anchorlib.compare("b", "a", store=tmp_path)
    assert f"{CLEARED} A takes B's gradient and its own of the step before" in found.sentence


def test_a_gradient_that_is_not_the_sum_of_its_passes_is_asked_about(tmp_path):
    def trained_with(name: str, left: float) -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            model(torch.randn(16, 8)).pow(2).sum().backward()
            model.weight.grad[0] += left  # what backward did not make
            optimizer.step()

    trained_with("a", 0.0)
    trained_with("b", 3.0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    said = f"{CLEARED} B's gradient alone is not the sum of its step's backward passes"
    assert said in found.sentence


@pytest.mark.slow
def test_clipping_is_no_gradient_that_was_left_over(tmp_path):
    found = compared(tmp_path, clip=0.5)
    assert CLEARED not in found.sentence
    assert "B clips the gradients' norm to 0.5" in found.sentence


def test_elements_that_were_cut_off_are_said_to_be_clipped_and_at_what(tmp_path):
    def trained_with(name: str, limit: float) -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            model(torch.randn(16, 8)).pow(2).sum().backward()
            nn.utils.clip_grad_value_(model.parameters(), limit)
            optimizer.step()

    trained_with("a", 1e9)
    trained_with("b", 2.5)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert "B clips each element of the gradient to 2.5" in found.sentence
    assert CLEARED not in found.sentence


@pytest.mark.slow
def test_what_another_optimizers_pass_left_over_is_told_too(tmp_path):
    def trained_with(name: str, cleared: bool) -> None:
        torch.manual_seed(0)
        made, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        first, second = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, made))
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(judge, tensors="*", optimizer=first, prefix="D")
            session.watch(made, tensors="*", optimizer=second, prefix="G")
            for step in range(3):
                if cleared or step != 1:
                    first.zero_grad()
                x = torch.randn(16, 4)
                judge(made(x).detach()).mean().backward()
                first.step()
                second.zero_grad()
                judge(made(x)).square().mean().backward()
                second.step()

    trained_with("a", cleared=True)
    trained_with("b", cleared=False)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert f"{CLEARED} B takes A's gradient and its own of the step before" in found.sentence


@pytest.mark.slow
def test_a_remainder_is_told_though_both_runs_clip_and_no_pass_was_recorded(tmp_path):
    """Three factors of clipping stand between the two gradients and what was left over."""
    for name, cleared in (("a", lambda _: True), ("b", lambda step: step != 2)):
        trained(tmp_path, name, cleared=cleared, clip=20.0, tensors=["*@grad"])
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert f"{CLEARED} B takes A's gradient and its own of the step before" in found.sentence


def test_another_limit_is_no_remainder_where_no_pass_was_recorded(tmp_path):
    for name, clip in (("a", 1.0), ("b", 0.5)):
        trained(tmp_path, name, clip=clip, tensors=["*@grad"])
    assert CLEARED not in anchorlib.compare("a", "b", store=tmp_path).sentence


def test_passes_in_eval_mode_that_are_not_cleared_away_are_asked_about(tmp_path):
    """Samples are moved by backward passes in eval mode, which reach the parameters as well."""

    def trained_with(name: str, *, clears: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                x = torch.randn(16, 8, requires_grad=True)
                model.eval()
                for _ in range(9):
                    model(x).pow(2).sum().backward()
                    x = (x - 0.01 * x.grad).detach().requires_grad_()
                model.train()
                if clears:
                    optimizer.zero_grad()
                model(x.detach()).pow(2).sum().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()

    trained_with("a", clears=True)
    trained_with("b", clears=False)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert f"{CLEARED} A's gradient lacks the first 9 passes of its step" in found.sentence
