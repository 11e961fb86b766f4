"""What eager code records in the situations that users meet, compiled code records too."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from anchorlib import anchor
from tests.anchorlib.capture.compiled.observing import (
    AOT,
    QUIET,
    TRACING,
    X,
    assert_compiled_as_eager,
    assert_same,
    record,
    together,
    weight,
)

pytestmark = QUIET


def narrow(x, w):
    h = x @ w
    anchor(h.to(torch.bfloat16), "bf16")
    anchor(h.to(torch.float16), "fp16")
    anchor(h.to(torch.float8_e4m3fn), "e4m3")
    anchor(h.to(torch.float8_e5m2), "e5m2")
    anchor(h.to(torch.int8), "int8")
    anchor(h.to(torch.uint8), "uint8")
    return h.sum()


def laid_out(x, w):
    h = torch.tanh(x @ w)
    image = h.reshape(1, 2, 2, 5).contiguous(memory_format=torch.channels_last)
    anchor(image, "channels last")
    anchor(h[:, ::2], "strided")
    anchor(h[1:, 2:].t(), "a view of a view")
    return (image * image).sum()


def retained(x, w):
    h = torch.tanh(x @ w)
    h.register_hook(lambda g: g * 2)
    anchor(h, "h")
    return h.sum()


def region(h):
    with torch.no_grad():
        anchor(h.mean(), "quiet")
    return anchor(torch.tanh(h), "inside").sin()


def reentrant(x, w):
    h = checkpoint(region, x @ w, use_reentrant=True)
    return checkpoint(region, h, use_reentrant=True).sum()


def mixed(x, w):
    def outer(h):
        return checkpoint(region, h, use_reentrant=False).cos()

    return checkpoint(outer, x @ w, use_reentrant=False).sum()


FUNCTIONS = [narrow, laid_out, retained, reentrant, mixed]


@pytest.mark.parametrize("backend", TRACING)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_compiled_code_records_what_eager_code_does(function, backend):
    assert_compiled_as_eager(function, backend)


def test_inductor_records_what_eager_code_does():
    assert_compiled_as_eager(together(FUNCTIONS), "inductor")


def shaped(x, w):
    h = torch.tanh(x @ w)
    anchor(h, "h")
    return h * h


def not_scalar(function, session):
    w = weight()
    for n in range(2):
        y = function(X, w)
        y.backward(torch.full_like(y, n + 1.0))
        session.step()


def by_inputs(function, session):
    w, x = weight(), X.clone().requires_grad_()
    y = function(x, w).sum()
    torch.autograd.grad(y, w, retain_graph=True)
    torch.autograd.grad(y, x)


def in_another_thread(function, session):
    y = function(X, weight()).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()


def offloaded(function, session):
    with torch.autograd.graph.save_on_cpu():
        function(X, weight()).sum().backward()


def in_a_checkpoint_twice(function, session):
    w = weight()
    y = checkpoint(lambda x: function(x, w).sum(), X.clone().requires_grad_(), use_reentrant=True)
    y.backward(retain_graph=True)
    y.backward()


@pytest.mark.parametrize("backend", AOT)
def test_however_backward_is_called(backend):
    compiled = torch.compile(shaped, fullgraph=True, backend=backend)
    for act in (not_scalar, by_inputs, in_another_thread, offloaded, in_a_checkpoint_twice):
        truth = record(shaped, act)
        assert truth.records("h", "grad"), act.__name__
        assert_same(record(compiled, act), truth)


def nested(rows, w):
    h = torch.tanh(rows * w)
    anchor(h, "rows")
    return h.values().sum()


def test_nested_tensors_are_their_parts_in_compiled_code_too():
    def act(function, session):
        parts = [torch.ones(2, 3), torch.full((4, 3), 0.5)]
        rows = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        function(rows, torch.tensor(2.0, requires_grad=True)).backward()

    truth = record(nested, act)
    assert {"rows:values@grad", "rows:offsets@value"} <= set(truth.names())
    assert_same(record(torch.compile(nested, backend="aot_eager"), act), truth)
