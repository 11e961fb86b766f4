"""Perturbed reruns: parameters move by a rounding error, once, and the run has its own name."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib.capture.sessions.perturbing import Perturbation, perturbation
from tests.recording import recording

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def perturbed(monkeypatch):
    def ask(text):
        monkeypatch.setenv("ANCHOR_PERTURB", text)

    return ask


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_element_but_zero_moves_by_the_eps_of_its_type(dtype):
    normal = (torch.rand(4000) + 1) * 2.0 ** torch.randint(-10, 10, (4000,))
    before = torch.cat([torch.zeros(1), normal, -normal]).to(dtype)
    after = before.clone()
    Perturbation(1, 0.0, "1").apply({"weight": after})
    assert after[0] == 0
    assert (after[1:] != before[1:]).all()
    relative = (after.double() - before.double()).abs()[1:] / before.double().abs()[1:]
    # An eps, and the rounding of the product.
    assert relative.max() <= 1.5 * torch.finfo(dtype).eps
    grew = (after.abs() > before.abs())[1:].double().mean()
    assert 0.4 < grew < 0.6


def test_an_eps_of_a_coarser_type_is_taken_as_it_is():
    weight = torch.ones(100)
    Perturbation(1, 2.0**-7, "1:bfloat16").apply({"weight": weight})
    assert set(weight.tolist()) == {1 + 2.0**-7, 1 - 2.0**-7}


@given(st.integers(0, 1000), st.integers(0, 1000), st.sampled_from(["a", "b"]))
def test_seed_and_name_alone_decide_the_signs(one, other, name):
    def signs(seed, parameter):
        weight = torch.ones(200)
        Perturbation(seed, 0.0, "").apply({parameter: weight})
        return (weight > 1).tolist()

    assert (signs(one, "a") == signs(other, name)) == (one == other and name == "a")


def test_a_parameter_is_perturbed_once_however_often_it_is_watched(perturbed):
    perturbed("1")
    net = model()
    net.append(net[2])  # shared
    start = [p.detach().clone() for p in net.parameters()]
    with recording() as r:
        r.session.watch(net)
        once = [p.detach().clone() for p in net.parameters()]
        r.session.watch(net, tensors="*")
        r.session.watch(net, prefix="again")
    assert all(map(torch.equal, once, net.parameters()))
    assert not any(map(torch.equal, once, start))


def test_what_is_recorded_first_is_perturbed_already(perturbed):
    perturbed("3")
    net = model()
    start = net[0].weight.detach().numpy().copy()
    with recording() as r:
        r.session.watch(net, tensors="*")
        net(torch.ones(2, 8)).sum().backward()
    (recorded,) = r.arrays("0.weight")
    assert np.array_equal(recorded, net[0].weight.detach().numpy())
    assert not np.array_equal(recorded, start)


def test_a_forward_that_ran_before_watch_can_still_go_back(perturbed):
    perturbed("1")
    net = model()
    loss = net(torch.ones(2, 8)).sum()
    with recording() as r:
        r.session.watch(net)
        loss.backward()


def test_the_run_is_named_after_the_one_that_the_script_names(perturbed, tmp_path):
    perturbed("2")
    for _ in range(2):  # the second time it takes the first one's place
        with anchorlib.start("run1", store=tmp_path) as session:
            session.watch(model())
            anchorlib.anchor(torch.ones(3), "x")
    run = anchorlib.open_run("run1-noise2", tmp_path)
    assert len(run["x@value"]) == 1
    assert run.header()["perturbed"] == "2"
    with pytest.raises(anchorlib.RunNotFoundError):
        anchorlib.open_run("run1", tmp_path)


def test_a_long_name_is_cut_to_what_a_run_may_be_called(perturbed):
    perturbed("12")
    with recording() as r:
        pass
    assert r.session.run == "memory-noise12"
    name, _ = Perturbation(12, 0.0, "").takes("r" * 64, "store", resume=False)
    assert name == "r" * 56 + "-noise12"


def test_a_script_of_two_sessions_goes_on_with_what_it_perturbed(perturbed, tmp_path):
    perturbed("5")
    net = model()
    for _ in range(2):
        with anchorlib.start("run1", store=tmp_path) as session:
            session.watch(net)
            anchorlib.anchor(torch.ones(3), "x")
        once = [p.detach().clone() for p in net.parameters()]
        with anchorlib.start("run1", store=tmp_path, resume=True, first_step=1) as session:
            session.watch(net)
            anchorlib.anchor(torch.ones(3), "x")
        assert all(map(torch.equal, once, net.parameters()))
        assert len(anchorlib.open_run("run1-noise5", tmp_path)["x@value"]) == 2


def test_a_restart_by_torchrun_goes_on_with_what_was_perturbed(perturbed, monkeypatch):
    perturbed("1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    net = model()
    start = [p.detach().clone() for p in net.parameters()]
    with recording() as r:
        r.session.watch(net)
    assert all(map(torch.equal, start, net.parameters()))


def test_ranks_that_do_not_record_are_perturbed_all_the_same(perturbed):
    perturbed("1")
    here, there = model(), model()
    for net, rank in ((here, 0), (there, 1)):
        with recording(rank=rank, ranks=[0]) as r:
            r.session.watch(net)
    assert all(map(torch.equal, here.parameters(), there.parameters()))
    assert not torch.equal(here[0].weight, model()[0].weight)


def test_where_no_model_is_watched_a_warning_says_that_nothing_was_perturbed(perturbed, caplog):
    perturbed("1:1e-3")
    with caplog.at_level(logging.WARNING, "anchorlib"), recording():
        anchorlib.anchor(torch.ones(3), "x")
    assert "ANCHOR_PERTURB=1:1e-3 is set, but no model was watched" in caplog.text


def test_what_has_no_eps_and_what_is_empty_stays_as_it_is():
    parameters = {
        "count": torch.arange(5),
        "mask": torch.ones(5, dtype=torch.bool),
        "empty": torch.ones(0),
        "meta": torch.ones(3, device="meta"),
    }
    Perturbation(1, 0.1, "").apply(parameters)
    assert parameters["count"].tolist() == [0, 1, 2, 3, 4]
    assert parameters["mask"].all()


@pytest.mark.parametrize(
    "text", ["x", "-1", "1:x", "1:int32", "1:1", "1:-0.1", ":1", "1:nan", "9" * 5000]
)
def test_a_setting_that_cannot_be_is_refused(perturbed, text):
    perturbed(text)
    with pytest.raises(anchorlib.OptionError, match="ANCHOR_PERTURB"):
        perturbation()


def test_without_the_variable_nothing_is_asked_for(perturbed, monkeypatch):
    monkeypatch.delenv("ANCHOR_PERTURB", raising=False)
    assert perturbation() is None
    perturbed("")
    assert perturbation() is None
    perturbed("1")
    monkeypatch.setenv("ANCHOR_DISABLED", "1")
    assert perturbation() is None
