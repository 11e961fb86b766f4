"""What Accelerate prepared, watched by one call."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from tests.anchorlib.integrations.consumed import (
    assert_recorded,
    assert_same_bits,
    gradients_consumed,
    where,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 3)
        self.fc2 = nn.Linear(3, 1)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x))).float().pow(2).mean()


@pytest.fixture
def accelerate():
    """The package, which keeps its state in classes."""
    package = importlib.import_module("accelerate")
    state = importlib.import_module("accelerate.state")
    yield package
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


@pytest.fixture
def watch(tmp_path):
    module = importlib.import_module("anchorlib.integrations.accelerate")

    def watch(*prepared, **options):
        return module.watch(*prepared, run="run1", store=tmp_path, **options)

    return watch


@pytest.fixture
def read(tmp_path):
    return lambda: anchorlib.open_run("run1", tmp_path)


def prepared(accelerator, lr=0.1):
    """A model that always begins alike, its optimizer, and 6 batches."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    data = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=2)
    return accelerator.prepare(model, optimizer, loader)


def train(accelerator, model, optimizer, loader):
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_an_accumulating_loop_is_recorded_as_it_is_and_left_as_it_is(
    accelerate, watch, read, precision
):
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
    )
    plain = prepared(accelerator)
    with gradients_consumed(plain[0]) as seen:
        train(accelerator, *plain)
    model, optimizer, loader = prepared(accelerator)
    with watch(accelerator, model, optimizer):
        train(accelerator, model, optimizer, loader)
    assert_same_bits(model, plain[0])
    run = read()
    assert run.state == "closed"
    assert_recorded(run, seen)
    passes = [("train", step, passed, 0) for step in range(3) for passed in range(2)]
    for name in ("fc1", "fc2", "output"):
        assert where(run, name) == where(run, name, "grad") == passes


def test_under_a_scaler_grad_is_unscaled_and_the_scale_of_the_rest_is_told(accelerate, watch, read):
    """Accelerate makes a scaler on accelerators alone; here it is given one that runs anywhere."""
    scale = 2.0**10
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    accelerator.native_amp = True
    model, optimizer, loader = prepared(accelerator)
    with gradients_consumed(model) as seen:
        selectors = ["*@grad", "fc1.weight@pass_grad"]
        with watch(accelerator, model, optimizer, tensors=selectors):
            for (x,) in loader:
                accelerator.backward(model(x))
                optimizer.step()
                optimizer.zero_grad()
    run = read()
    assert_recorded(run, seen)
    parts = run.series("fc1.weight", "pass_grad")
    assert set(parts.columns["scale"]) == {scale}
    for part, consumed in zip(parts.values(), seen["fc1.weight"], strict=True):
        np.testing.assert_array_equal(part / scale, consumed)


def test_of_two_optimizers_the_last_counts_the_steps(accelerate, watch, read):
    accelerator = accelerate.Accelerator(cpu=True)
    model = Net()
    halves = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model.fc1, model.fc2)]
    model, *optimizers = accelerator.prepare(model, *halves)
    with gradients_consumed(model) as seen, watch(accelerator, model, optimizers):
        for _ in range(3):
            for optimizer in optimizers:
                model.zero_grad()
                accelerator.backward(model(torch.randn(2, 4)))
                optimizer.step()
    run = read()
    assert_recorded(run, seen)
    assert where(run, "fc1") == [("train", step, one, 0) for step in range(3) for one in range(2)]


def test_the_rank_is_the_accelerators_unless_it_is_given(accelerate, watch, read):
    class Second:
        process_index = 1

    watch(Second(), Net()).close()
    watch(Second(), Net(), rank=7).close()
    assert read().ranks == [1, 7]


def test_a_selector_that_matches_nothing_leaves_no_session(accelerate, watch, tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(anchorlib.UnknownTensorError, match="fc3"):
        watch(accelerator, Net(), tensors=["fc3"])
    anchorlib.start("another", store=tmp_path).close()  # the process is free for it


def test_every_option_of_start_is_one_of_watch(watch):
    module = importlib.import_module("anchorlib.integrations.accelerate")
    training = importlib.import_module("anchorlib.integrations.training")
    named = set(inspect.signature(module.watch).parameters)
    for name in set(inspect.signature(anchorlib.start).parameters) - named:
        training.ObservedTraining(None, None, "", {name: None})
    with pytest.raises(TypeError, match="tensros"):
        watch(None, Net(), tensros=["fc1"])
