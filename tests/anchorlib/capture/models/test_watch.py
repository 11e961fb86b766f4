"""`watch`: tensors anchored by name, without editing the model."""

from __future__ import annotations

import copy
import logging
import sys
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib import EveryN, Sum, UnknownTensorError
from tests.recording import recording
from tests.waiting import until_collected


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.fc2 = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc2(torch.tanh(self.norm(self.fc1(x))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def train(model, optimizer, steps=2, passes=1):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.randn(5, 4, generator=generator)).pow(2).mean().backward()
        optimizer.step()


def test_tensor_names_are_the_selectors_that_watch_accepts(net):
    optimizer = torch.optim.Adam(net.parameters())
    names = anchorlib.tensor_names(net, optimizer)
    assert names[:10] == [
        "input@value",
        "input@grad",
        "fc1@value",
        "fc1@grad",
        "norm@value",
        "norm@grad",
        "fc2@value",
        "fc2@grad",
        "output@value",
        "output@grad",
    ]
    assert "fc2.bias@delta" in names
    assert "fc2.bias@opt.*" in names
    assert "norm.running_mean@value" in names
    with recording() as run:
        for name in names:
            run.session.watch(net, tensors=[name], optimizer=optimizer)
        train(net, optimizer, steps=1)
    recorded = set(run.names())
    assert {n for n in names if not n.endswith("opt.*") and n != "input@grad"} <= recorded
    assert {"fc2.bias@opt.exp_avg", "fc2.bias@opt.exp_avg_sq", "fc2.bias@opt.step"} <= recorded


def test_with_no_state_yet_or_some_the_names_say_which(net):
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer, steps=1)
    names = anchorlib.tensor_names(net, optimizer)
    assert "fc1.weight@opt.exp_avg" in names
    assert not any(name.endswith("opt.*") for name in names)


def test_by_default_every_output_with_its_gradient_and_every_parameters_grad(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(net, optimizer=optimizer)
        train(net, optimizer, steps=1)
    outputs = {f"{n}@{k}" for n in ("fc1", "norm", "fc2", "output") for k in ("value", "grad")}
    gradients = {f"{name}@grad" for name, _ in net.named_parameters()}
    assert set(run.names()) == outputs | gradients


def test_without_an_optimizer_the_default_is_each_pass_gradient(net):
    with recording() as run:
        run.session.watch(net)
        net(torch.randn(5, 4)).sum().backward()
    parameters = {n for n in run.names() if n.startswith("fc1.")}
    assert parameters == {"fc1.weight@pass_grad", "fc1.bias@pass_grad"}


def test_a_star_is_everything_the_model_and_optimizer_have(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with recording() as run:
        run.session.watch(net, tensors="*", optimizer=optimizer)
        train(net, optimizer, steps=1)
    names = run.names()
    for kind in ("value", "pass_grad", "grad", "updated", "delta", "opt.momentum_buffer"):
        assert f"fc1.weight@{kind}" in names
    assert {"input@value", "norm.running_var@value", "norm.num_batches_tracked@value"} <= set(names)


def test_parameter_kinds_are_what_the_training_did(net):
    reference = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with recording() as run:
        run.session.watch(net, tensors=["fc2.weight"], optimizer=optimizer)
        run.session.watch(net, tensors=["fc2.weight@opt.*"], optimizer=optimizer)
        train(net, optimizer, steps=2, passes=2)

    mirror = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    w = reference.fc2.weight
    for step in range(2):
        mirror.zero_grad()
        start = w.detach().clone()
        parts = []
        for _ in range(2):
            before = w.grad.clone() if w.grad is not None else torch.zeros_like(w)
            reference(torch.randn(5, 4, generator=generator)).pow(2).mean().backward()
            parts.append(w.grad - before)
        consumed = w.grad.clone()
        mirror.step()
        assert np.array_equal(run.arrays("fc2.weight", "value")[step], start.numpy())
        assert np.array_equal(run.arrays("fc2.weight", "grad")[step], consumed.numpy())
        assert np.array_equal(run.arrays("fc2.weight", "updated")[step], w.detach().numpy())
        assert np.array_equal(run.arrays("fc2.weight", "delta")[step], (w.detach() - start).numpy())
        buffer = mirror.state[w]["momentum_buffer"]
        assert np.array_equal(run.arrays("fc2.weight", "opt.momentum_buffer")[step], buffer.numpy())
        for n, part in enumerate(parts):
            recorded = run.arrays("fc2.weight", "pass_grad")[2 * step + n]
            assert np.allclose(recorded, part.numpy(), atol=1e-7)
    assert run.at("fc2.weight", "pass_grad") == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert run.at("fc2.weight", "grad") == [(0, 0, 0), (1, 0, 0)]


def test_a_parameters_value_is_recorded_again_when_its_bits_changed_between_passes(net):
    with recording() as run:
        run.session.watch(net, tensors=["fc1.weight@value", "fc2.weight@value"])
        for change in (False, True, False):
            if change:
                net.fc1.weight.data.mul_(2)
            net(torch.randn(5, 4)).sum().backward()
    assert run.at("fc1.weight") == [(0, 0, 0), (0, 1, 0)]
    assert run.at("fc2.weight") == [(0, 0, 0)]


def test_a_buffer_is_recorded_each_pass_that_changed_it(net):
    with recording() as run:
        run.session.watch(net, tensors=["norm.num_batches_tracked"])
        for _ in range(3):
            net(torch.randn(5, 4)).sum().backward()
    assert [a.item() for a in run.arrays("norm.num_batches_tracked")] == [0, 1, 2]


def test_watching_again_adds_modes(net):
    with recording() as run:
        run.session.watch(net, tensors=["fc1@value"], mode=Sum("run"))
        run.session.watch(net, tensors=["fc1@value"], mode=EveryN(2))
        run.session.watch(net, tensors=["fc1@value"], mode=EveryN(2))
        for _ in range(4):
            net(torch.randn(5, 4)).sum().backward()
    assert len(run.records("fc1", mode="every_n:2")) == 2
    (total,) = run.records("fc1", mode="sum:window=run")
    assert total.count == 4
    assert run.at("fc1")[:2] == [(0, 1, 0), (0, 3, 0)]


def test_two_passes_a_step_with_every_second_record(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(mode=EveryN(2)) as run:
        run.session.watch(net, tensors=["output"], optimizer=optimizer)
        train(net, optimizer, steps=3, passes=2)
    assert run.at("output") == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]
    assert run.at("output", "grad") == run.at("output")


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as a wrapper around a base optimizer."""

    def __init__(self, parameters, base, rho=0.05, **options):
        super().__init__(list(parameters), dict(rho=rho, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()


def test_sams_two_passes_are_kept_apart(net):
    optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1)
    with recording() as run:
        run.session.watch(net, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(5, 4)
            net(x).pow(2).mean().backward()
            optimizer.first_step()
            net(x).pow(2).mean().backward()
            optimizer.second_step()
    two = [(step, p, 0) for step in range(3) for p in range(2)]
    assert run.at("output") == two
    assert run.at("output", "grad") == two
    assert run.at("fc1.weight", "pass_grad") == two
    assert run.at("fc1.weight") == two  # the second pass starts with perturbed weights
    assert run.at("fc1.weight", "updated") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    values, updated = run.arrays("fc1.weight"), run.arrays("fc1.weight", "updated")
    assert np.array_equal(values[2], updated[0])
    assert not np.array_equal(values[0], values[1])
    consumed, passes = run.arrays("fc1.weight", "grad"), run.arrays("fc1.weight", "pass_grad")
    assert np.array_equal(consumed[0], passes[1])


def test_a_step_with_a_closure_records_the_gradient_that_the_closure_made(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(net, tensors=["fc1.weight@grad"], optimizer=optimizer)
        for _ in range(2):

            def closure():
                optimizer.zero_grad()
                loss = net(torch.ones(5, 4) * 0.5).pow(2).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            assert np.array_equal(run.arrays("fc1.weight", "grad")[-1], net.fc1.weight.grad.numpy())
    assert run.at("fc1.weight", "grad") == [(0, 0, 0), (1, 0, 0)]


def test_lbfgs_calls_its_closure_often_and_is_recorded_once_a_step(net):
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
    with recording() as run:
        run.session.watch(net, tensors=["fc1.weight@grad", "output@value"], optimizer=optimizer)

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(5, 4) * 0.5).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure=closure)
        optimizer.step(closure=closure)
    assert run.at("fc1.weight", "grad") == [(0, 0, 0), (1, 0, 0)]
    assert run.at("output")[:3] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


def test_the_gradient_is_the_one_after_the_users_own_step_hooks(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def halve(opt, _args, _kwargs):
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    with recording() as run:
        run.session.watch(net, tensors=["fc1.weight@grad"], optimizer=optimizer)
        train(net, optimizer, steps=1)
    assert np.array_equal(run.arrays("fc1.weight", "grad")[0], net.fc1.weight.grad.numpy())


def test_an_eval_forward_carries_eval_by_itself(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(net, tensors=["output@value"], optimizer=optimizer)
        train(net, optimizer, steps=1)
        net.eval()
        with torch.no_grad():
            for _ in range(3):
                net(torch.randn(2, 4))
        net.train()
        train(net, optimizer, steps=1)
    where = [
        (c.phase, c.step, c.pass_index) for c in [r.coordinates for r in run.records("output")]
    ]
    assert where == [
        ("train", 0, 0),
        ("eval", 1, 0),
        ("eval", 1, 1),
        ("eval", 1, 2),
        ("train", 1, 0),
    ]


def test_a_forward_that_fails_leaves_no_phase_behind(net):
    net.eval()
    with recording() as run:
        run.session.watch(net)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            net(torch.randn(2, 99))
        net.train()
        net(torch.randn(5, 4)).sum().backward()
    assert {r.coordinates.phase for r in run.records("output")} == {"train"}


def test_a_shared_layer_is_several_calls():
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    with recording() as run:
        run.session.watch(model, tensors=["0", "0.weight@pass_grad"])
        model(torch.randn(2, 3)).sum().backward()
    assert run.at("0") == [(0, 0, 0), (0, 0, 1)]
    assert run.at("0", "grad") == [(0, 0, 1), (0, 0, 0)]
    assert run.at("0.weight", "pass_grad") == [(0, 0, 0)]


@dataclass
class Answer:
    logits: torch.Tensor
    state: dict[str, torch.Tensor]


class Many(nn.Module):
    def forward(self, x, *, mask):
        return x + 1, (x + 2, x + 3), {"extra": x * mask}, Answer(x + 5, {"h": x + 6})


def test_further_outputs_and_inputs_have_names():
    model = Many()
    with recording() as run:
        run.session.watch(model, tensors=["*"])
        model(torch.ones(1), mask=torch.ones(1))
    assert run.names() == [
        "input@value",
        "input:mask@value",
        "output@value",
        "output:1.0@value",
        "output:1.1@value",
        "output:2.extra@value",
        "output:3.logits@value",
        "output:3.state.h@value",
    ]


@pytest.mark.slow
def test_a_further_output_may_be_asked_for_before_it_is_known(caplog):
    model = nn.Sequential(nn.LSTM(3, 4))
    with recording() as run:
        run.session.watch(model, tensors=["0:1.0@value", "0:nothing@value"])
        model(torch.randn(5, 2, 3))
    assert run.names() == ["0:1.0@value"]
    assert "nothing ever matched '0:nothing@value'" in caplog.text


@pytest.mark.parametrize(
    ("selector", "hint"),
    [
        ("fc2.bais", "did you mean 'fc2.bias'"),
        ("fc2.bias@graad", "the kinds of 'fc2.bias' are value, pass_grad"),
        ("nonsense*", "nonsense*"),
        ("re:[", "re:["),
    ],
)
def test_a_selector_that_matches_nothing_is_refused_and_nothing_is_registered(net, selector, hint):
    with recording() as run:
        with pytest.raises(UnknownTensorError) as caught:
            run.session.watch(net, tensors=["fc1", selector])
        assert hint in str(caught.value)
        net(torch.randn(5, 4)).sum().backward()
    assert run.names() == []
    assert not net._forward_hooks


def test_a_name_of_nothing_in_the_model_is_told_apart_from_an_anchors(net):
    with recording() as run:
        with pytest.raises(UnknownTensorError, match="what anchor\\(\\) marks needs no watch"):
            run.session.watch(net, tensors=["fc1", "loss"])
        with pytest.raises(UnknownTensorError, match="did you mean") as misspelt:
            run.session.watch(net, tensors=["fc1.wieght"])
        assert "anchor()" not in str(misspelt.value)


def test_the_gradient_that_an_optimizer_consumes_needs_the_optimizer(net):
    with recording() as run, pytest.raises(UnknownTensorError, match="optimizer="):
        run.session.watch(net, tensors=["fc1.weight@delta"])


def test_poptorch_spellings_are_understood(net):
    optimizer = torch.optim.Adam(net.parameters())
    with recording() as run:
        run.session.watch(
            net,
            tensors=[
                "Gradient___fc1.weight",
                "Gradient___fc2",
                "Accum___fc1.bias",
                "UpdatedVar___fc1.bias",
                "Accl1___fc1.bias",
            ],
            optimizer=optimizer,
        )
        train(net, optimizer, steps=1)
    assert set(run.names()) == {
        "fc1.weight@pass_grad",
        "fc2@grad",
        "fc1.bias@grad",
        "fc1.bias@updated",
        "fc1.bias@opt.exp_avg",
    }


@pytest.mark.slow
def test_what_the_program_lets_go_of_a_watched_model_is_let_go_and_its_names_are_free():
    def once(session):
        model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        session.watch(model, tensors="*", optimizer=optimizer)
        train(model, optimizer)
        return [weakref.ref(one) for one in (*model.modules(), *model.parameters(), optimizer)]

    with recording() as run:
        for _ in range(2):
            gone = once(run.session)
            until_collected(gone)
    assert [step for step, *_ in run.at("0.weight", "grad")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_selector_that_nothing_came_to_match_is_told_of_a_model_that_is_gone_too(caplog):
    def once(session):
        model = nn.Linear(3, 2)
        session.watch(model, tensors=["output:1"])
        return [weakref.ref(model)]

    with recording() as run:
        until_collected(once(run.session))
    assert "nothing ever matched 'output:1'" in caplog.text


def test_a_prefix_goes_before_every_name(net):
    with recording() as run:
        run.session.watch(
            net, tensors=["encoder.fc1@value", "encoder.output@value"], prefix="encoder"
        )
        net(torch.randn(5, 4))
    assert run.names() == ["encoder.fc1@value", "encoder.output@value"]


@pytest.mark.parametrize(
    ("selector", "named"),
    [
        ("fc1", ["fc1@value", "fc1@grad"]),
        ("output@value", ["output@value"]),
        ("fc*.bias@grad", ["fc1.bias@grad", "fc2.bias@grad"]),
        ("re:fc[12]|norm@value", ["fc1@value", "norm@value", "fc2@value"]),
        ("Accum___fc2.bias", ["fc2.bias@grad"]),
        ("fc1.weight@opt.exp_avg", ["fc1.weight@opt.exp_avg"]),
        ("*.bias@updated", ["fc1.bias@updated", "norm.bias@updated", "fc2.bias@updated"]),
    ],
)
def test_a_selector_may_leave_the_prefix_out(net, selector, named):
    optimizer = torch.optim.Adam(net.parameters())
    with recording() as run:
        run.session.watch(net, tensors=[selector], optimizer=optimizer, prefix="a.b")
        train(net, optimizer, steps=1)
    assert sorted(run.names()) == sorted(f"a.b.{name}" for name in named)


def test_a_selector_that_names_nothing_with_or_without_the_prefix_says_what_was_meant(net):
    with (
        recording() as run,
        pytest.raises(UnknownTensorError, match=r"did you mean 'teacher\.fc2'"),
    ):
        run.session.watch(net, tensors=["teacher.fc3"], prefix="teacher")


def test_tensor_names_with_a_prefix_are_those_that_watch_takes_with_it(net):
    optimizer = torch.optim.Adam(net.parameters())
    plain = anchorlib.tensor_names(net, optimizer)
    names = anchorlib.tensor_names(net, optimizer, prefix="teacher")
    assert names == [f"teacher.{name}" for name in plain]
    with recording() as run:
        run.session.watch(net, tensors=names, optimizer=optimizer, prefix="teacher")
        run.session.watch(net, tensors=plain, optimizer=optimizer, prefix="teacher")


def test_another_model_of_the_same_names_needs_a_prefix(net):
    other = copy.deepcopy(net)
    for recorded in (True, False):
        with recording(rank=0, ranks=[0] if recorded else [1]) as run:
            run.session.watch(net, tensors=["fc1", "fc2.weight@pass_grad"])
            with pytest.raises(anchorlib.OptionError, match=r"names: 'fc1'.*prefix") as caught:
                run.session.watch(other, tensors=["fc1@value", "norm"], mode=Sum)
            assert "norm" not in str(caught.value)
            with pytest.raises(anchorlib.OptionError, match="prefix"):
                run.session.watch(other, tensors=["fc1:1"])
            other(torch.randn(2, 4))
            assert run.names() == []
            run.session.watch(other, tensors=["norm", "fc1.weight@pass_grad"])
            run.session.watch(other, tensors=["ema.fc1"], prefix="ema")
            run.session.watch(net, tensors=["fc2"])
            net(torch.randn(2, 4))
            other(torch.randn(2, 4))
        wanted = {"fc1@value", "fc2@value", "norm@value", "ema.fc1@value"}
        assert set(run.names()) == (wanted if recorded else set())


def test_a_part_of_a_watched_model_may_be_watched_under_its_own_prefix(net):
    with recording() as run:
        run.session.watch(net, tensors=["output", "fc1"])
        with pytest.raises(anchorlib.OptionError, match="'output'"):
            run.session.watch(net.fc1, tensors=["output"])
        run.session.watch(net.fc1, tensors=["first.output"], prefix="first")
        net(torch.randn(2, 4))
    assert np.array_equal(run.arrays("first.output")[0], run.arrays("fc1")[0])


def test_a_users_module_called_output_does_not_hide_the_models_output():
    model = nn.Sequential()
    model.add_module("output", nn.Linear(2, 2))
    model.add_module("input", nn.Linear(2, 2))
    with recording() as run:
        run.session.watch(model, tensors="*")
        model(torch.ones(1, 2))
    assert {"output@value", "output_@value", "input@value", "input_@value"} <= set(run.names())


def test_frozen_parameters_and_integer_buffers_are_no_trouble(net):
    net.fc1.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    with recording() as run:
        run.session.watch(net, tensors="*", optimizer=optimizer)
        train(net, optimizer, steps=1)
    assert "fc1.weight@value" in run.names()
    assert "fc1.weight@grad" not in run.names()
    assert "fc2.weight@grad" in run.names()


def test_a_parameter_without_a_gradient_leaves_no_grad_record(net):
    unused = nn.Linear(2, 2)
    net.add_module("unused", unused)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(net, optimizer=optimizer)
        train(net, optimizer, steps=1)
    assert not [n for n in run.names() if n.startswith("unused")]


def test_after_the_session_nothing_of_it_is_left_on_the_model(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording() as run:
        run.session.watch(net, tensors="*", optimizer=optimizer)
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not any(p._backward_hooks for p in net.parameters())
    assert not optimizer._optimizer_step_pre_hooks


def test_a_model_that_only_anchors_gets_its_steps_right():
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    with recording() as run:
        for _ in range(3):
            h = w * 2
            anchorlib.anchor(h, "h")
            loss = h.sum()
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert run.at("h") == run.at("loss") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert run.at("h", "grad") == run.at("h")


def test_a_gan_counts_by_the_first_optimizer_to_complete():
    g, d = nn.Linear(2, 2), nn.Linear(2, 1)
    opt_d, opt_g = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (d, g))
    with recording() as run:
        for _ in range(2):
            for optimizer in (opt_d, opt_g):
                loss = d(g(torch.randn(3, 2))).mean()
                anchorlib.anchor(loss, "loss")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert run.at("loss") == [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0)]


def test_of_two_optimizers_in_one_watch_the_last_counts_the_steps_and_both_are_recorded():
    gan = nn.ModuleDict({"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)})
    opt_d, opt_g = (torch.optim.SGD(gan[one].parameters(), lr=0.1) for one in "dg")
    seen = {"d.weight": [], "g.weight": []}
    names = anchorlib.tensor_names(gan, [opt_d, opt_g])
    assert {"g.weight@delta", "d.weight@delta"} <= set(names)
    with recording() as run:
        selectors = ["*@grad", "g.weight@updated", "d.weight@updated"]
        run.session.watch(gan, tensors=selectors, optimizer=[opt_d, opt_g])
        for _ in range(3):
            for name, optimizer in (("d.weight", opt_d), ("g.weight", opt_g)):
                gan.zero_grad()
                gan["d"](gan["g"](torch.randn(3, 2))).mean().backward()
                seen[name].append(gan[name[0]].weight.grad.clone().numpy())
                optimizer.step()
    for name, expected in seen.items():
        assert run.at(name, "grad") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
        assert run.at(name, "updated") == run.at(name, "grad")
        for got, want in zip(run.arrays(name, "grad"), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    assert run.at("d", "grad") == [(s, p, 0) for s in range(3) for p in range(2)]


def test_an_optimizer_that_steps_again_in_one_step_makes_further_calls(net):
    """As a critic's does that is trained three times for each step of its generator."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    consumed = []
    with recording() as run:
        kinds = ["fc1.weight@grad", "fc1.weight@updated", "fc1.weight@delta"]
        run.session.watch(net, tensors=kinds, optimizer=optimizer)
        run.session.step(0)
        for _ in range(2):
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(5, 4)).pow(2).mean().backward()
                consumed.append(net.fc1.weight.grad.clone().numpy())
                optimizer.step()
            run.session.step()
    for kind in ("grad", "updated", "delta"):
        assert run.at("fc1.weight", kind) == [(s, 0, n) for s in range(2) for n in range(3)]
    for got, want in zip(run.arrays("fc1.weight", "grad"), consumed, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_wrong_optimizer_is_refused(net):
    with recording() as run, pytest.raises(anchorlib.AnchorError, match="optimizer= takes"):
        run.session.watch(net, optimizer="adam")


def test_a_fault_of_ours_never_reaches_training(net, monkeypatch, caplog):
    with recording() as run:
        run.session.watch(net)

        def fail(*_args, **_kwargs):
            raise RuntimeError("planted")

        monkeypatch.setattr(run.session._recorder, "observe", fail)
        with caplog.at_level(logging.WARNING):
            net(torch.randn(5, 4)).sum().backward()
        anchorlib.anchor(torch.ones(1), "x")
    assert run.session.counters.skipped["RuntimeError: planted"] > 5
    assert caplog.text.count("planted") == 1


def test_a_tied_weight_or_shared_module_answers_to_its_further_names():
    model = nn.Sequential()
    shared = nn.Linear(3, 3)
    model.add_module("first", shared)
    model.add_module("again", shared)
    model.add_module("head", nn.Linear(3, 3))
    model.head.weight = shared.weight
    with recording() as run:
        run.session.watch(model, tensors=["again@value", "again.bias@pass_grad"])
        run.session.watch(model, tensors=["head.weight@pass_grad"])
        model(torch.ones(2, 3)).sum().backward()
    assert set(run.names()) == {"first@value", "first.bias@pass_grad", "first.weight@pass_grad"}


def test_a_frozen_parameter_says_why_it_has_no_gradient(net):
    net.fc1.requires_grad_(False)
    with recording() as run, pytest.raises(UnknownTensorError, match="does not require a grad"):
        run.session.watch(net, tensors=["fc1.weight@pass_grad"])


def test_only_a_parameter_is_told_that_it_needs_an_optimizer(net):
    with recording() as run:
        with pytest.raises(UnknownTensorError) as caught:
            run.session.watch(net, tensors=["output@delta"])
        assert "optimizer" not in str(caught.value)


@pytest.mark.parametrize(("model", "tensors"), [(3, None), (nn.Linear(1, 1), [3])])
def test_wrong_arguments_are_option_errors(model, tensors):
    with recording() as run, pytest.raises(anchorlib.OptionError):
        run.session.watch(model, tensors=tensors)


def test_two_backwards_through_one_forward_are_two_calls_of_pass_grad(net):
    with recording() as run:
        run.session.watch(net, tensors=["fc1.weight@pass_grad"])
        loss = net(torch.randn(5, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        net(torch.randn(5, 4)).sum().backward()
    assert run.at("fc1.weight", "pass_grad") == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]


def test_a_leaf_used_in_a_later_pass_has_that_passes_coordinates():
    w = torch.ones(2, requires_grad=True)
    with recording() as run:
        anchorlib.anchor(w, "w")
        for _ in range(2):
            h = w * 2
            anchorlib.anchor(h, "h")
            h.sum().backward()
    assert run.at("w", "grad") == [(0, 0, 0), (0, 1, 0)]


def test_selectors_of_the_session_that_nothing_matched_are_told(caplog):
    with recording(tensors=["a", "nope@grad"]):
        anchorlib.anchor(torch.ones(1), "a")
    assert "nothing ever matched 'nope@grad'" in caplog.text


@pytest.mark.parametrize("number", ["a", -1, 1.5])
def test_a_step_number_that_cannot_be_one_is_refused_at_once(number):
    with recording() as run:
        with pytest.raises(anchorlib.OptionError):
            run.session.step(number)
        run.session.step()
        anchorlib.anchor(torch.ones(1), "x")
    assert run.at("x") == [(1, 0, 0)]


def calls_to_watch(optimizers):
    """How many calls it takes to watch a model that has so many optimizers, one a parameter."""
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(optimizers)))
    each = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    with recording() as run:
        before = sys.getprofile()
        sys.setprofile(count)
        run.session.watch(model, tensors="*", optimizer=each)
        sys.setprofile(before)
        model(torch.ones(1, 2)).sum().backward()
        for one in each:
            one.step()
    assert run.at(f"{optimizers - 1}.weight", "delta") == [(0, 0, 0)]
    return calls


@pytest.mark.slow
def test_a_model_with_an_optimizer_a_parameter_is_watched_in_time_that_grows_with_their_number():
    few, some, many = map(calls_to_watch, (20, 40, 80))
    assert many - some <= 2.2 * (some - few)
