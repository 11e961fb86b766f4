"""The loss is found: the tensor on which backward is called, as `loss`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

import anchorlib
from anchorlib.capture import find_losses


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def losses(session_run):
    series = session_run["loss@value"]
    columns = series.columns
    places = zip(columns["step"], columns["pass_index"], columns["call"], strict=True)
    return [tuple(map(int, place)) for place in places], series.values().tolist()


def session_of(tmp_path):
    session = anchorlib.start("run1", store=tmp_path)
    find_losses(session)
    return session


def test_what_backward_is_called_on_is_the_loss(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with session_of(tmp_path) as session:
        session.watch(model, optimizer=optimizer)
        for _ in range(2):
            for _ in range(2):
                loss = model(torch.ones(4, 3)).pow(2).mean()
                seen.append(loss.item())
                loss.backward()
            optimizer.step()
    places, values = losses(anchorlib.open_run("run1", tmp_path))
    assert places == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert values == seen


def test_several_losses_of_one_forward_are_calls_of_its_pass(tmp_path, model):
    with session_of(tmp_path) as session:
        session.watch(model)
        y = model(torch.ones(4, 3))
        y.sum().backward(retain_graph=True)
        y.pow(2).sum().backward(retain_graph=True)
        torch.autograd.backward([y.mean(), y.std()])
    run = anchorlib.open_run("run1", tmp_path)
    assert losses(run)[0] == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)]
    assert set(run["output@value"].columns["pass_index"].tolist()) == {0}


def test_what_is_no_scalar_is_no_loss(tmp_path, model):
    with session_of(tmp_path) as session:
        session.watch(model)
        model(torch.ones(4, 3)).backward(torch.ones(4, 2))
    assert "loss" not in {one.name for one in anchorlib.open_run("run1", tmp_path).tensors()}


def test_a_loss_that_GradScaler_scaled_is_recorded_as_it_was(tmp_path, model):  # noqa: N802
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with session_of(tmp_path) as session:
        session.watch(model)
        loss = model(torch.ones(4, 3)).mean()
        scaler.scale(loss).backward()
    assert losses(anchorlib.open_run("run1", tmp_path))[1] == [loss.item()]


def test_an_anchor_or_module_called_loss_records_instead(tmp_path, model):
    with session_of(tmp_path) as session:
        session.watch(model)
        loss = model(torch.ones(4, 3)).mean()
        anchorlib.anchor(loss * 2, "loss")
        loss.backward()
    assert losses(anchorlib.open_run("run1", tmp_path))[1] == [2 * loss.item()]

    model = nn.Module()
    model.loss = nn.MSELoss()
    with anchorlib.start("run2", store=tmp_path) as session:
        find_losses(session)
        session.watch(model)
        x = torch.ones(2, requires_grad=True)
        model.loss(x, 2 * x).backward()
    assert len(anchorlib.open_run("run2", tmp_path)["loss@value"]) == 1


def test_a_checkpoint_that_calls_backward_has_no_loss(tmp_path, model):
    with session_of(tmp_path) as session:
        session.watch(model)
        x = torch.ones(4, 3, requires_grad=True)
        checkpoint(lambda y: model(y).sum(), x, use_reentrant=True).backward()
    assert len(anchorlib.open_run("run1", tmp_path)["loss@value"]) == 1


def test_torchs_own_backward_is_back_when_the_session_is_closed(tmp_path, model):
    before = torch.autograd.backward
    with session_of(tmp_path) as session:
        assert torch.autograd.backward is not before
        session.watch(model)
    assert torch.autograd.backward is before


def test_a_found_loss_is_explained_by_the_output_it_was_computed_from(tmp_path, model):
    for name, factor in (("run1", 1.0), ("run2", 1.001)):
        with anchorlib.start(name, store=tmp_path) as session:
            find_losses(session)
            session.watch(model)
            (model(torch.ones(4, 3)).pow(2).mean() * factor).backward()
            model.zero_grad()
    found = anchorlib.compare("run1", "run2", store=tmp_path)
    assert (found.first.place.name, found.first.place.kind) == ("loss", "value")
    assert found.losses is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, about .grad of what is no leaf
def test_compiled_autograd_is_left_alone(tmp_path, model):
    with session_of(tmp_path) as session:
        session.watch(model)
        loss = model(torch.ones(4, 3)).mean()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
    assert model.weight.grad is not None
    assert losses(anchorlib.open_run("run1", tmp_path))[1] == [loss.item()]
