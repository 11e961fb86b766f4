"""Watched models that are compiled, in every way in which torch compiles a model."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.capture.naming import named_leaves
from tests.anchorlib.capture.compiled.observing import (
    AOT,
    BACKENDS,
    QUIET,
    TRACING,
    assert_same,
    observed,
    places,
    said,
)
from tests.recording import recording

pytestmark = QUIET


# Well conditioned, unlike what the other tests use: a batch is normalised here.
X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))


def perceptron():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


class Pair(nn.Module):
    def forward(self, x):
        return x * 2, {"k": x + 1}


@dataclass
class Parts:
    a: torch.Tensor
    b: torch.Tensor


class Split(nn.Module):
    def forward(self, x):
        return Parts(x * 3, x - 1)


class Structured(nn.Module):
    """Outputs of every form, a module used twice, buffers that the forward changes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.pair = Pair()
        self.split = Split()

    def forward(self, x, *, scale=None):
        a, d = self.pair(torch.tanh(self.norm(self.inner(x))))
        first, second = self.split(d["k"]), self.split(a)
        r = first.a + first.b + a + second.a
        if scale is not None:
            r = r * scale
        return {"loss": r.pow(2).sum(), "r": r}


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        torch._dynamo.graph_break()
        return self.b(h)


def loss_of(output):
    return output["loss"] if isinstance(output, dict) else output.sum()


def trained(model, call, session):
    loss_of(call(X)).backward()
    model.zero_grad()


def accumulated(model, call, session):
    for n in range(3):
        loss_of(call(X * (n + 1))).backward()
    model.zero_grad()


def validated(model, call, session):
    """All that a model is called for: training on several batches, evaluation, training again."""
    accumulated(model, call, session)
    model.eval()
    with torch.no_grad():
        call(X)
        call(X)
    model.train()
    trained(model, call, session)


def wrapped(model, backend):
    return torch.compile(model, backend=backend)


def in_its_own_call(model, backend):
    model.compile(backend=backend, fullgraph=not isinstance(model, Broken))
    return model


def inside_a_function(model, backend):
    def function(x):
        return model(x)

    return torch.compile(function, backend=backend)


def watched(make, compiled, act, tensors="*", *, watch_first=False):
    """What is recorded of three steps of a model made by `make`."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make()
    call = None if watch_first else compiled(model)
    with recording() as run:
        run.session.watch(call if isinstance(call, nn.Module) else model, tensors=tensors)
        if call is None:
            call = compiled(model)
        for _ in range(3):
            act(model, call, run.session)
            run.session.step()
    return run


def eager(model):
    return model


MODELS = [perceptron, Structured, Broken]


@pytest.mark.parametrize("backend", TRACING)
@pytest.mark.parametrize("make", MODELS, ids=lambda f: f.__name__)
def test_a_compiled_model_is_recorded_as_the_model_itself(make, backend):
    truth = watched(make, eager, validated)
    run = watched(make, lambda model: wrapped(model, backend), validated)
    assert_same(run, truth)


@pytest.mark.parametrize(
    ("make", "compiled", "backend"),
    [
        *((Structured, inside_a_function, backend) for backend in TRACING),
        *((Broken, inside_a_function, backend) for backend in TRACING),
        *((Broken, in_its_own_call, backend) for backend in TRACING),
        pytest.param(Structured, inside_a_function, "inductor", marks=pytest.mark.long),
        pytest.param(Broken, in_its_own_call, "inductor", marks=pytest.mark.long),
    ],
    ids=lambda f: getattr(f, "__name__", f),
)
def test_whichever_way_it_is_compiled(make, compiled, backend):
    truth = watched(make, eager, validated)
    run = watched(make, lambda model: compiled(model, backend), validated)
    assert_same(run, truth)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.wide), "aot_eager"])
@pytest.mark.parametrize(
    "tensors",
    [
        None,
        ["*@value"],
        ["split@grad", "split:b"],
        ["output:loss@grad"],
        ["input", "norm.running_mean"],
    ],
    ids=["default", "values", "some", "loss", "input"],
)
def test_only_what_was_chosen_is_recorded(tensors, backend):
    truth = watched(Structured, eager, accumulated, tensors)
    run = watched(Structured, lambda model: wrapped(model, backend), accumulated, tensors)
    assert_same(run, truth)
    assert {p.pass_index for p in observed(run)} == {0, 1, 2}


@pytest.mark.parametrize("backend", AOT)
def test_a_model_may_be_watched_before_it_is_compiled(backend):
    truth = watched(perceptron, eager, validated)
    run = watched(perceptron, lambda m: wrapped(m, backend), validated, watch_first=True)
    assert_same(run, truth)


@pytest.mark.parametrize("backend", TRACING)
def test_a_root_that_is_entered_in_one_graph_and_left_in_another(backend):
    truth = watched(Broken, eager, validated)
    with torch._dynamo.config.patch(nested_graph_breaks=True):
        run = watched(Broken, lambda model: inside_a_function(model, backend), validated)
    assert_same(run, truth)


def test_a_watch_after_the_first_compiled_call_compiles_anew_and_says_so(caplog):
    model = perceptron()
    call = torch.compile(model, backend="aot_eager")
    call(X)
    with recording() as run:
        run.session.watch(model, tensors=["1"])
        call(X).sum().backward()
    assert run.names() == ["1@value", "1@grad"]
    assert "watch() was called after code was compiled" in caplog.text
    with recording() as run:
        run.session.watch(model, tensors=["2"])
        call(X).sum().backward()
    assert run.names() == ["2@value", "2@grad"]


def test_a_watch_before_anything_was_compiled_is_quiet(caplog):
    with recording() as run:
        run.session.watch(perceptron(), tensors=["1"])
    assert said(caplog) == []


def test_after_the_session_nothing_of_it_is_left_in_the_graph():
    code = []

    def backend(module, _inputs):
        code.append(module.code)
        return module

    model = perceptron()
    before = torch.compile(model, backend=backend)
    forward = before.forward
    with recording() as run:
        run.session.watch(before)
        before(X)
    assert before.forward is forward
    before(X)
    assert "anchorlib" in code[0]
    assert "anchorlib" not in code[-1]
    with recording() as other:
        before(X)
    assert other.names() == []


def test_one_of_several_outputs_is_said_to_be_seen_from_outside_alone(caplog):
    torch.manual_seed(0)
    model = Structured()
    with recording() as run:
        run.session.watch(model, tensors=["output:loss", "output:r"])
        call = torch.compile(model, backend="aot_eager")
        call(X)["loss"].backward()
    assert ("output:r", "grad", 0, 0, 0) not in places(run)
    assert run.arrays("output:loss", "grad")[0] == 1
    reason = "a gradient that compiled code keeps to itself"
    assert run.session.counters.skipped == {reason: 1}
    assert {gap.name for gap in run.sink.gaps} == {"output:r"}
    assert run.sink.entries["grad.from_outside"] == ["output:loss"]
    assert caplog.text.count("is one of several outputs of compiled code") == 1


class Encoding(nn.Module):
    """It returns what it uses itself beside what it makes of it, in a form of the caller's.

    named: whether what it uses is a layer's output, and has the layer's name too.
    """

    def __init__(self, form, named):
        super().__init__()
        self.code, self.out = nn.Linear(3, 4), nn.Linear(4, 3)
        self.form, self.named = form, named

    def forward(self, x):
        code = self.code(x) if self.named else self.code(x) * 2
        return self.form(self.out(code.tanh()), code)


FORMS = {
    "tuple": lambda made, code: (made, code),
    "dict": lambda made, code: {"made": made, "code": code},
    "dataclass": Parts,
}


def encoded(store, run, form, *, backend=None, named=True):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Encoding(FORMS[form], named)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        # The plain model: what hangs on the root then runs outside the compiled code.
        session.watch(model, tensors="*", optimizer=optimizer)
        call = model if backend is None else torch.compile(model, backend=backend)
        for _ in range(2):
            made, code = (tensor for _, tensor in named_leaves("", call(X)))
            optimizer.zero_grad()
            ((made - X).square().mean() + 0.1 * code.abs().mean()).backward()
            optimizer.step()
    return anchorlib.open_run(run, store=store)


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_that_is_recorded_as_seen_from_outside_is_no_gap(tmp_path, form):
    encoded(tmp_path, "a", form)
    run = encoded(tmp_path, "b", form, backend="aot_eager")
    seen = sorted(i.name for i in run.tensors() if i.name.startswith("output") and i.kind == "grad")
    assert len(seen) == 2
    assert run.header()["grad.from_outside"] == seen
    assert run.gaps() == []
    found = anchorlib.compare("a", "b", store=tmp_path)
    # What follows from the gradient was compared, and shows that the two were the same.
    assert (found.complete.a, found.complete.b) == (True, True)
    assert (found.verdict, found.incomplete) == ("expected", False)
    assert found.counts.differing == 2
    assert "No value differs but 2 gradients of which one run saw a part" in found.sentence
    assert any("b saw the gradient of output" in note for note in found.notes)
    assert "grad.from_outside" not in found.config_diff


def test_an_answer_that_depends_on_such_a_gradient_is_incomplete(tmp_path):
    encoded(tmp_path, "a", "tuple", named=False)
    encoded(tmp_path, "b", "tuple", backend="aot_eager", named=False)
    found = anchorlib.compare("a", "b", store=tmp_path, tensors=["output*", "*@value"])
    assert found.first.place.name == "output:1"
    assert (found.verdict, found.incomplete) == ("suspect", True)


def test_what_no_mode_selects_is_no_gap():
    with recording() as run:
        run.session.watch(
            model := Structured(), tensors=["output:r@grad"], mode="every_n:2:unit=step"
        )
        call = torch.compile(model, backend="aot_eager")
        for _ in range(4):
            call(X)["loss"].backward()
            run.session.step()
    assert [(gap.name, gap.count) for gap in run.sink.gaps] == [("output:r", 2)]


def test_an_anchor_on_what_compiled_code_gave_out_says_what_it_cannot_see():
    from anchorlib import anchor

    @torch.compile(backend="aot_eager")
    def outputs(x):
        h = x.tanh()
        return h, (h * 2).sum(), h.detach()

    @torch.compile(backend="aot_eager")
    def output(x):
        h = x.tanh()
        return h, h.detach().sum()

    x = X.clone().requires_grad_()
    with recording() as run:
        h, total, _ = outputs(x)
        anchor(h, "one of two")
        (h.sum() + total).backward()
        h, _ = output(x)
        anchor(h, "the only one")
        h.sum().backward()
    assert run.sink.gaps == []
    assert run.sink.entries["grad.from_outside"] == ["one of two"]
    assert np.all(run.arrays("the only one", "grad")[0] == 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_optimizers_may_be_compiled_and_whole_steps(backend):
    def act(compile_step, compile_all):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = perceptron()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x):
            loss = model(x).pow(2).sum()
            loss.backward()
            update()
            optimizer.zero_grad()
            return loss.detach()

        with recording() as run:
            run.session.watch(model, tensors="*", optimizer=optimizer)
            update = compile_step(optimizer.step)
            whole = compile_all(step)
            for n in range(3):
                whole(X * (n + 1))
        return run

    def compiled(function):
        return torch.compile(function, backend=backend)

    truth = act(eager, eager)
    assert {p.kind for p in observed(truth)} >= {"grad", "updated", "delta", "opt.momentum_buffer"}
    if backend != "inductor":  # a whole step has the optimizer's
        assert_same(act(compiled, eager), truth)
    assert_same(act(eager, compiled), truth)


def test_hooks_of_ours_are_not_compiled_by_themselves(caplog):
    model = Broken()
    with recording() as run, caplog.at_level(logging.WARNING):
        run.session.watch(model)
        code = []

        def backend(module, _inputs):
            code.append(module)
            return module

        call = torch.compile(model, backend=backend)
        for _ in range(12):
            call(X).sum().backward()
            run.session.step()
    assert len(code) == 2  # one on each side of the break
    assert "recompile_limit" not in caplog.text
