"""Parameters and buffers of a model on a device: digested there, and seldom waited for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anchorlib.capture.models import model_state
from tests.recording import recording


@pytest.fixture
def waits(monkeypatch):
    """How often the thread asked the device what changed; all tensors are taken to lie on one."""
    asked = []

    def changed(before, now):
        asked.append(len(now))
        return real(before, now)

    real = model_state.changed
    monkeypatch.setattr(model_state, "changed", changed)
    monkeypatch.setattr(model_state, "_is_on_device", lambda _tensor: True)
    monkeypatch.setattr(
        model_state, "digest", lambda _raw: pytest.fail("the values were copied to the CPU")
    )
    return asked


def passes(run, net, *counts, change=None):
    """Steps with so many passes each; `change(step, number)` runs before each pass."""
    for step, count in enumerate(counts):
        for number in range(count):
            if change is not None:
                change(step, number)
            net(torch.ones(2, 3)).sum().backward()
        run.session.step()


@pytest.fixture
def net():
    return nn.Linear(3, 2)


def test_steps_of_one_pass_wait_for_nothing(waits, net):
    with recording() as run:
        run.session.watch(net, tensors=["weight@value", "bias@value"])
        passes(run, net, 1, 1, 1)
    assert waits == []
    assert run.at("weight") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_a_later_pass_waits_once_and_records_what_changed_alone(waits, net):
    def change(step, number):
        if (step, number) in {(0, 2), (1, 1)}:
            net.weight.data.mul_(2)

    with recording() as run:
        run.session.watch(net, tensors=["weight@value", "bias@value"])
        passes(run, net, 3, 3, change=change)
    assert waits == [2] * 4
    assert run.at("weight") == [(0, 0, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0)]
    assert run.at("bias") == [(0, 0, 0), (1, 0, 0)]


def test_a_pass_that_was_not_expected_is_recorded_whole_once(waits, net):
    with recording() as run:
        run.session.watch(net, tensors=["weight@value", "bias@value"])
        passes(run, net, 1, 1, 3, 3)
    assert run.at("bias") == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (2, 1, 0), (3, 0, 0)]


def test_buffers_of_two_phases_are_asked_about_apart(waits):
    norm = nn.BatchNorm1d(3)
    with recording() as run:
        run.session.watch(norm, tensors="*@value")
        passes(run, norm, 2, 2)
    assert [int(one) for one in run.arrays("num_batches_tracked")] == [0, 1, 2, 3]
