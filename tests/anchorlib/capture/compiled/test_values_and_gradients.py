"""Anchors in compiled code record what they record in eager code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorlib import anchor
from tests.anchorlib.capture.compiled.observing import (
    QUIET,
    TRACING,
    W,
    X,
    assert_compiled_as_eager,
    observed,
    record,
    together,
    train,
    weight,
)

pytestmark = QUIET


def ignored(x, w):
    h = torch.tanh(x @ w)
    anchor(h, "h")
    return (h * h).sum()


def used(x, w):
    h = anchor(torch.tanh(x @ w), "h")
    return anchor((h * h).sum(), "loss")


def in_a_loop(x, w):
    h = x @ w
    for i in range(3):
        h = torch.sin(h * 2)
        anchor(h, "shared")
        anchor(h, f"layer{i}")
    return h.sum()


def in_place(x, w):
    h = x @ w
    anchor(h, "before")
    h.relu_()
    anchor(h, "after")
    h = h + 0
    h.mul_(2)
    view = h.view(-1)
    anchor(view, "view")
    view.add_(1)
    return (h * h).sum()


def without_gradients(x, w):
    with torch.no_grad():
        h = torch.tanh(x @ w)
        anchor(h, "h")
    anchor(h * 2, "value alone", grad=False)
    return (h * w.sum()).sum()


def off_the_path(x, w):
    h = torch.tanh(x @ w)
    anchor(h * 3, "off")
    anchor(h.detach(), "detached")
    anchor((h * 2).detach(), "dead")
    return h.sum()


def of_every_kind(x, w):
    h = x @ w
    anchor(h > 0, "bool")
    anchor(h.argmax(1), "int")
    anchor(h.sum(), "0-d")
    anchor(h.t(), "transposed")
    anchor(h[:, :1].expand(4, 7), "expanded")
    anchor(h[:0], "empty")
    anchor(torch.complex(h, h).conj(), "complex")
    anchor(h.double(), "double")
    return h.sum()


def leaf(x, w):
    anchor(w, "w")
    anchor(x, "x")
    return torch.tanh(x @ w).sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.tanh(x)
        anchor(y, "inside forward")
        return y

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        result = gradient * (1 - torch.tanh(x) ** 2)
        anchor(result, "inside backward")
        return result


def custom_function(x, w):
    h = anchor(x @ w, "before")
    h = Doubled.apply(h)
    anchor(h, "after")
    return h.sum()


def vmapped(x, w):
    def row(r):
        h = torch.tanh(r @ w)
        anchor(h, "h")
        return h.sum()

    return torch.vmap(row)(x).sum()


def transformed(x, w):
    def loss(x):
        h = torch.tanh(x @ w)
        anchor(h, "h")
        return (h * h).sum()

    return torch.func.grad(loss)(x).sum()


def rowwise(w):
    def function(x):
        h = torch.tanh(x @ w)
        anchor(h, "h")
        return h

    return function


def pulled_back(x, w):
    output, pullback = torch.func.vjp(rowwise(w), x)
    return pullback(torch.ones_like(output))[0].sum()


def pushed_forward(x, w):
    return torch.func.jvp(rowwise(w), (x,), (x,))[1].sum()


def jacobian(x, w):
    return torch.func.jacrev(rowwise(w))(x).sum()


def per_row_gradients(x, w):
    def loss(row):
        return rowwise(w)(row).sum()

    return torch.vmap(torch.func.grad(loss))(x).sum()


def autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        h = x @ w
        anchor(h, "h")
        return h.float().sum()


NAMES = ["a\0b", "é\n\x1b[31m", "x" * 1024, "a'b\"c\\%s{}"]


def strangely_named(x, w):
    h = x @ w
    for name in NAMES:
        anchor(h, name)
    return h.sum()


def hooked(x, w):
    h = x @ w
    h.register_hook(lambda g: g * 10)
    anchor(h, "hooked")
    h.register_hook(lambda g: g * 100)
    return h.sum()


FUNCTIONS = [
    ignored,
    used,
    in_a_loop,
    in_place,
    without_gradients,
    off_the_path,
    of_every_kind,
    leaf,
    custom_function,
    vmapped,
    strangely_named,
    hooked,
    transformed,  # last: its backward, inside the forward, ends a pass in eager code alone
]


@pytest.mark.parametrize("backend", TRACING)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_compiled_code_records_what_eager_code_does(function, backend):
    assert_compiled_as_eager(function, backend)


@pytest.mark.long
def test_inductor_records_what_eager_code_does():
    assert_compiled_as_eager(together(FUNCTIONS), "inductor")


@pytest.mark.parametrize("backend", TRACING)
@pytest.mark.parametrize(
    "function",
    [pulled_back, pushed_forward, jacobian, per_row_gradients, autocast],
    ids=lambda f: f.__name__,
)
def test_transforms_and_autocast_are_seen_through_as_in_eager_code(function, backend):
    assert_compiled_as_eager(function, backend)


def infer(function, session):
    with torch.inference_mode():
        function(X, W)


@pytest.mark.parametrize("backend", TRACING)
def test_inference_mode_records_values(backend):
    run = assert_compiled_as_eager(ignored, backend, infer)
    assert run.names() == ["h@value"]


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_the_modes_of_torch_compile_change_nothing_nor_does_inference(mode):
    def act(function, session):
        train(function, session)
        infer(function, session)

    assert_compiled_as_eager(ignored, "inductor", act, mode=mode)


def test_dynamic_shapes_take_one_graph():
    graphs = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    function = torch.compile(ignored, fullgraph=True, dynamic=True, backend=graphs)

    def act(function, session):
        w = weight()
        for rows in (4, 5, 6, 7):
            function(torch.ones(rows, 3), w).backward()
            session.step()

    run = record(function, act)
    for kind in ("value", "grad"):
        assert [r.shape for r in run.records("h", kind)] == [(n, 5) for n in (4, 5, 6, 7)]
    assert graphs.frame_count == 1


def test_names_come_through_compiled_code_exactly():
    run = record(torch.compile(strangely_named, fullgraph=True, backend="eager"))
    assert {p.name for p in observed(run)} == set(NAMES)


def test_the_gradient_is_taken_between_earlier_and_later_hooks():
    run = record(torch.compile(hooked, fullgraph=True, backend="aot_eager"))
    assert np.all(run.arrays("hooked", "grad")[0] == 10)


@pytest.mark.parametrize("backend", TRACING)
def test_an_input_that_is_no_leaf_is_followed(backend):
    def inner(h):
        anchor(h, "given")
        return torch.sin(h).sum()

    def act(function, session):
        for _ in range(2):
            function(X @ weight()).backward()
            session.step()

    assert_compiled_as_eager(inner, backend, act)


@pytest.mark.parametrize("backend", TRACING)
def test_compiled_parts_and_eager_parts_count_calls_together(backend):
    def block(h):
        h = torch.tanh(h)
        anchor(h, "h")
        return h * 2

    def whole(block):
        def function(x, w):
            h = x @ w
            anchor(h, "h")
            h = block(h)
            anchor(h, "h")
            return block(h).sum()

        return function

    truth = record(whole(block))
    run = record(whole(torch.compile(block, fullgraph=True, backend=backend)))
    assert sorted(observed(run)) == sorted(observed(truth))
    assert run.at("h")[:4] == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)]


@pytest.mark.parametrize("backend", TRACING)
def test_code_that_breaks_its_graph_records_the_same(backend):
    def function(x, w):
        h = torch.tanh(x @ w)
        anchor(h, "a")
        torch._dynamo.graph_break()
        q = h * 2
        anchor(q, "b")
        anchor(q, "a")
        return q.sum()

    truth = record(function)
    run = record(torch.compile(function, backend=backend))
    assert sorted(observed(run)) == sorted(observed(truth))
