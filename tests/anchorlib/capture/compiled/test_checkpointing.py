"""Activation checkpointing in and around compiled code: nothing is recorded twice."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from anchorlib import anchor
from tests.anchorlib.capture.compiled.observing import (
    AOT,
    BACKENDS,
    QUIET,
    X,
    assert_compiled_as_eager,
    assert_same,
    observed,
    record,
    weight,
)
from tests.anchorlib.capture.compiled.test_numbering import (
    two_then_one_backward,
    two_then_the_first_backward_first,
    two_then_the_last_backward_first,
)

pytestmark = QUIET

SQUARE = torch.linspace(-1, 1, 25).reshape(5, 5)


def block(h):
    h = torch.tanh(h @ SQUARE)
    anchor(h, "inside")
    return torch.sin(h)


def twice(x, w):
    h = x @ w
    for _ in range(2):
        h = checkpoint(block, h, use_reentrant=False)
        anchor(h, "between")
    return h.sum()


def nested(x, w):
    def outer(h):
        h = checkpoint(block, h, use_reentrant=False)
        anchor(h, "outside")
        return torch.sin(h)

    return checkpoint(outer, x @ w, use_reentrant=False).sum()


def keep_products(_context, op, *_args, **_kwargs):
    keep = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


selectively = partial(create_selective_checkpoint_contexts, keep_products)


def selective(x, w):
    return checkpoint(block, x @ w, use_reentrant=False, context_fn=selectively).sum()


def half(h):
    with torch.no_grad():
        anchor(torch.tanh(h), "without")
    return torch.sin(h)


def without(x, w):
    return checkpoint(half, x @ w, use_reentrant=False).sum()


FUNCTIONS = [twice, nested, selective]


@pytest.mark.filterwarnings("ignore:\nDetected that context_fn")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_backward_runs_again_is_not_recorded_again(function, backend):
    assert_compiled_as_eager(function, backend)


@pytest.mark.parametrize("backend", AOT)
def test_recomputation_finds_the_forward_that_it_repeats(backend):
    compiled = torch.compile(twice, fullgraph=True, backend=backend)
    for act in (
        two_then_one_backward,
        two_then_the_first_backward_first,
        two_then_the_last_backward_first,
    ):
        truth = record(twice, act)
        assert truth.records("inside", "grad"), act.__name__
        assert_same(record(compiled, act), truth)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_part_without_gradients_is_not_recorded_again(backend):
    run = record(torch.compile(without, fullgraph=True, backend=backend))
    assert run.at("without") == [(0, 0, 0), (1, 0, 0)]


def compiled_inside(reentrant):
    def act(function, session):
        x, w = X.clone().requires_grad_(), weight()

        def region(x):
            return torch.sin(function(x, w)) * function(x * 2, w)

        for _ in range(2):
            checkpoint(region, x, use_reentrant=reentrant).backward()
            session.step()

    return act


def plain(x, w):
    h = x @ w
    for _ in range(2):
        h = torch.tanh(h * 2)
        anchor(h, "h")
    anchor(w, "w")
    return h.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_may_be_checkpointed_as_a_whole(backend):
    compiled = torch.compile(plain, fullgraph=True, backend=backend)
    for reentrant in (False, True):
        act = compiled_inside(reentrant)
        truth = record(plain, act)
        assert {p.kind for p in observed(truth)} == {"value", "grad"}
        assert_same(record(compiled, act), truth)
