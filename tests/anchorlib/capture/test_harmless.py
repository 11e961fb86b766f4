"""Observing changes nothing and leaks nothing."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib import All, EveryN, Final, Sum, Summary
from tests.recording import recording


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.2)
        )
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.head(self.body(x.view(-1, 1, 8, 8)).flatten(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.encoder(x.view(-1, 4, 16)).mean(1))


def perceptron():
    return nn.Sequential(
        nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 10)
    )


def training(make, observed):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses, gradients = [], []

    def loop():
        for _ in range(4):
            x, y = torch.randn(12, 64), torch.randint(0, 10, (12,))
            loss = nn.functional.cross_entropy(model(x), y)
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            gradients.append([p.grad.clone() for p in model.parameters()])

    if observed:
        with recording() as run:
            run.session.watch(model, tensors="*", optimizer=optimizer)
            loop()
        assert len(run.sink.records) > 100
        assert not run.session.counters.skipped
    else:
        loop()
    return losses, gradients, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("make", [perceptron, Convolutional, Attention])
def test_losses_gradients_and_weights_are_bit_equal_with_and_without_anchors(make):
    losses, gradients, weights = training(make, observed=False)
    seen_losses, seen_gradients, seen_weights = training(make, observed=True)
    assert losses == seen_losses
    for step, seen_step in zip(gradients, seen_gradients, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(step, seen_step, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights, seen_weights, strict=True))


EVERY_MODE = [All, Sum, Sum("run"), Final, EveryN(2), Summary]


def many_of_a_users_tensors(model, optimizer):
    """The tensors that last, and those of two steps, once each."""
    held = [*model.parameters(), *model.buffers()]
    for _step in range(2):
        for _pass in range(2):
            x = torch.randn(8, 64)
            h = model(x)
            anchorlib.anchor(h, "h", mode=EVERY_MODE)
            anchorlib.print_tensor(h, "h")
            anchorlib.print_tensor(model[0].weight, "weight")
            h.retain_grad()
            h.pow(2).sum().backward()
            held += [x, h, h.grad]
        held += [p.grad for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    for state in optimizer.state.values():
        held += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return held


@pytest.mark.slow
def test_every_tensor_of_the_users_can_be_resized_afterwards():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.Linear(512, 3))
    model.register_buffer("scalar", torch.tensor(1.0))
    model.register_buffer("low", torch.ones(2, 3, dtype=torch.bfloat16).t())
    optimizer = torch.optim.Adam(model.parameters())
    with recording() as run:
        run.session.watch(model, tensors="*", mode=EVERY_MODE, optimizer=optimizer)
        held = many_of_a_users_tensors(model, optimizer)
    assert {"0.weight@value", "0.weight@opt.exp_avg", "low@value", "h@grad"} <= set(run.names())
    assert all(x.untyped_storage().resizable() for x in held)
    model[0].weight.data.resize_(600, 64)


@pytest.mark.filterwarnings("ignore:Sparse CSC")
def test_parameters_and_buffers_of_every_kind_are_recorded_beside_others():
    """One whose bits cannot be told apart, or that has none, takes no other with it."""
    model = nn.Linear(2, 2)
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "rows": torch.eye(3).to_sparse_csc(),
        "lazy": torch.ones(3, dtype=torch.complex64).conj(),
        "nowhere": torch.empty(3, device="meta"),
        "opaque": torch.ones(3, 4).to_mkldnn(),
        "empty": torch.empty(0, 3),
    }
    for name, buffer in (odd | {"z": torch.ones(2)}).items():
        model.register_buffer(name, buffer)
    with recording() as run:
        run.session.watch(model, tensors="*@value")
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
    for name in ("sparse:values", "rows:values", "lazy", "empty", "z"):
        assert len(run.records(name)) == 1, f"{name}: its bits were the same in both passes"
    assert run.session.counters.skipped == {"meta": 1, "layout _mkldnn": 1}


def test_the_state_of_random_numbers_is_left_alone():
    with recording(mode=anchorlib.Sum("run")):
        before = torch.get_rng_state()
        for _ in range(3):
            anchorlib.anchor(torch.zeros(100), "x")
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.long
def test_twelve_thousand_steps_leave_memory_flat():
    """In a process of its own: what earlier tests left of the heap moves by more than a leak.

    A leak grows in each stretch of steps; what is allocated once grows in the first half of them.
    """
    command = [sys.executable, "-m", "tests.anchorlib.capture.soak"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    marks, steps = seen.pop("in_use"), seen.pop("steps_between")
    assert seen == {"records": 12_000 * 40, "skipped": 0, "streams": 40, "handles": 0}
    growth = [
        statistics.median(later - mark for mark, later in pairwise(one))
        for one in zip(*marks[len(marks) // 2 :], strict=True)
    ]
    allocated, blocks, regions = (grown / steps for grown in growth)
    assert allocated < 16, f"{allocated:.0f} bytes a step; {marks}"
    assert blocks < 0.25, f"{blocks:.2f} objects a step; {marks}"
    assert regions < 0.01, f"{regions:.3f} mapped regions a step; {marks}"


@pytest.mark.slow
def test_inputs_that_need_gradients_leave_nothing_behind():
    with recording() as run:
        for _ in range(2000):
            x = torch.ones(2, requires_grad=True)
            anchorlib.anchor(x, "x")
            (x * 2).sum().backward()
        assert len(run.session._observer._hook_handles) <= 512
    assert len(run.records("x", "grad")) == 2000
