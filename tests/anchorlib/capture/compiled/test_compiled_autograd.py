"""Compiled autograd: around the forward, around a whole step, and around no backward at all."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

from anchorlib import anchor
from tests.anchorlib.capture.compiled.observing import (
    QUIET,
    X,
    assert_same,
    record,
    weight,
)
from tests.recording import recording

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:Skipping call to torch.autograd"),
]


def plain(x, w):
    h = torch.tanh(x @ w)
    anchor(h, "h")
    anchor(w, "w")
    anchor(h * 2, "value alone", grad=False)
    return (h * h).sum()


def checkpointed(x, w):
    def block(h):
        h = torch.tanh(h)
        anchor(h, "inside")
        return torch.sin(h)

    h = x @ w
    for _ in range(2):
        h = checkpoint(block, h, use_reentrant=False)
        anchor(h, "between")
    return h.sum()


def switched_on(_backend):
    return torch._dynamo.config.patch(compiled_autograd=True)


def as_a_context(backend):
    return compiled_autograd._enable(torch.compile(backend=backend))


def forward_alone(function, compile_it):
    compiled = compile_it(function, fullgraph=True)
    return lambda w: compiled(X, w).backward()


def whole_step(function, compile_it):
    def step(w):
        loss = function(X, w)
        loss.backward()
        return loss.detach()

    return compile_it(step)


def two_forwards(function, compile_it):
    compiled = compile_it(function, fullgraph=True)
    return lambda w: (compiled(X, w) + compiled(X * 2, w)).backward()


def nothing_compiled(function, _compile_it):
    return lambda w: function(X, w).backward()


def run_of(shape, function, compile_it, context):
    def act(_, session):
        step, w = shape(function, compile_it), weight()
        with context:
            for _ in range(2):
                step(w)
                session.step()

    return record(None, act)


def both(x, w):
    return plain(x, w) + checkpointed(x, w)


SHAPES = [
    (forward_alone, switched_on),  # torch alone would not let a hook be traced here
    (whole_step, switched_on),
    (forward_alone, as_a_context),
    (two_forwards, as_a_context),
]


@pytest.mark.parametrize(
    ("shape", "context", "function", "backend"),
    [
        *((*shape, both, "aot_eager") for shape in SHAPES),
        *((*shape, both, "eager") for shape in SHAPES[:2]),
        *(pytest.param(*shape, both, "eager", marks=pytest.mark.long) for shape in SHAPES[2:]),
        *(
            pytest.param(*shape, checkpointed, "inductor", marks=pytest.mark.long)
            for shape in SHAPES[1::2]
        ),
    ],
    ids=lambda f: getattr(f, "__name__", f),
)
def test_gradients_are_recorded_under_compiled_autograd(shape, context, function, backend):
    def compile_it(function, **options):
        return torch.compile(function, backend=backend, **options)

    truth = run_of(shape, function, lambda function, **_: function, nullcontext())
    assert_same(run_of(shape, function, compile_it, context(backend)), truth)


def test_eager_anchors_are_recorded_in_a_compiled_backward():
    truth = run_of(nothing_compiled, plain, None, nullcontext())
    assert_same(run_of(nothing_compiled, plain, None, as_a_context("aot_eager")), truth)


def test_compiled_autograd_is_left_as_it_was():
    with recording(), switched_on(""), as_a_context("eager"):
        assert compiled_autograd.compiled_autograd_enabled
        torch.compile(plain, fullgraph=True, backend="eager")(X, weight()).backward()
        assert compiled_autograd.compiled_autograd_enabled
