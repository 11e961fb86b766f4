"""Coordinates in compiled code: those of the program, whatever order the compiler runs it in."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from anchorlib import EveryN, anchor
from tests.anchorlib.capture.compiled.observing import (
    AOT,
    BACKENDS,
    QUIET,
    TRACING,
    X,
    assert_compiled_as_eager,
    assert_same,
    observed,
    places,
    record,
    weight,
)

pytestmark = QUIET


def chain(x, w):
    h = x @ w
    for _ in range(3):
        h = torch.sin(h * 2)
        anchor(h, "h")
    return h.sum()


def branches(kinds, mode):
    """Independent branches of very different sizes: inductor runs the big ones when it suits it."""

    def function(x, w):
        sums = []
        for i, kind in enumerate(kinds):
            if kind == "big":
                h = torch.relu(x[:, :1] * w[i % 5].sum() + torch.zeros(1, 4000) + i)
            elif kind == "small":
                h = (x @ w).sum() + i
            else:
                h = (x @ w) @ w.t() + i
            anchor(h, "h", mode)
            sums.append(h.sum())
        for total in reversed(sums):
            anchor(total, "sum", mode)
        return sum(sums[::-1])

    return function


SHUFFLED = ["mm", "mm", "big", "mm", "small", "mm", "big", "big"]
ALSO_SHUFFLED = ["mm", "mm", "small", "big", "mm", "mm", "mm", "small"]


@pytest.mark.parametrize(
    ("kinds", "mode"),
    [
        (ALSO_SHUFFLED, "all"),
        *(
            pytest.param(SHUFFLED, mode, marks=pytest.mark.long)
            for mode in (["summary", "every_n:2"], "all", "final", EveryN(3))
        ),
    ],
    ids=str,
)
def test_calls_are_in_program_order_where_inductor_reorders(kinds, mode):
    function = branches(kinds, mode)
    x, w = torch.randn(64, 32), torch.randn(32, 32)

    def act(function, session):
        leaf = w.clone().requires_grad_()
        for _ in range(2):
            function(x, leaf).backward()
            session.step()

    truth = record(function, act)
    run = record(torch.compile(function, fullgraph=True), act)
    if mode == "all":
        calls = [r.coordinates.call for r in run.records("h")]
        assert calls != sorted(calls[:8]) * 2  # else nothing is proven
    got, wanted = observed(run), observed(truth)
    assert sorted(got) == sorted(wanted)
    for place, (array,) in wanted.items():
        np.testing.assert_allclose(got[place][0], array, rtol=1e-3, atol=1e-2, err_msg=str(place))


def two_then_one_backward(function, session):
    w = weight()
    (function(X, w) + function(X * 2, w)).backward()


def two_then_the_last_backward_first(function, session):
    w = weight()
    first, last = function(X, w), function(X * 2, w)
    last.backward()
    first.backward()


def two_then_the_first_backward_first(function, session):
    w = weight()
    first, last = function(X, w), function(X * 2, w)
    first.backward()
    last.backward()


def accumulation(function, session):
    w = weight()
    for _ in range(2):
        for n in range(3):
            function(X * n, w).backward()
        session.step()


def a_backward_after_the_step(function, session):
    w = weight()
    loss = function(X, w)
    for _ in range(3):
        session.step()
    loss.backward()
    function(X, w).backward()


ACTS = [
    two_then_one_backward,
    two_then_the_last_backward_first,
    two_then_the_first_backward_first,
    accumulation,
    a_backward_after_the_step,
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_stay_with_their_own_forward(backend):
    compiled = torch.compile(chain, fullgraph=True, backend=backend)
    for act in ACTS:
        truth = record(chain, act)
        assert truth.records("h", "grad"), act.__name__
        assert_same(record(compiled, act), truth)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_repeated_backward_is_recorded_again(backend):
    def act(function, session):
        loss = function(X, weight())
        loss.backward(retain_graph=True)
        loss.backward()

    with torch._functorch.config.patch(donated_buffer=False):
        run = assert_compiled_as_eager(chain, backend, act)
    assert [len(a) for p, a in observed(run).items() if p.kind == "grad"] == [2, 2, 2]


@pytest.mark.parametrize("backend", TRACING)
def test_passes_advance_whether_or_not_gradients_are_recorded(backend):
    def function(x, w):
        h = x @ w
        anchor(h, "h", grad=False)
        return h.sum()

    run = assert_compiled_as_eager(function, backend, accumulation)
    assert run.at("h") == [(step, n, 0) for step in range(2) for n in range(3)]
    assert run.names() == ["h@value"]


def test_a_leaf_is_recorded_once_a_call_and_its_gradient_once_a_backward():
    def function(x, w):
        anchor(w, "w")
        return (x @ w).sum()

    function = torch.compile(function, fullgraph=True, backend="aot_eager")
    w = weight()

    def act(function, session):
        for _ in range(3):
            function(X, w)  # without a backward
            (function(X, w) + function(X, w)).backward()
            session.step()

    run = record(function, act)
    assert places(run) == [
        *(("w", "value", 0, 0, n) for n in range(3)),
        ("w", "grad", 0, 0, 2),
        *(("w", "value", 1, 0, n) for n in range(3)),
        ("w", "grad", 1, 0, 2),
        *(("w", "value", 2, 0, n) for n in range(3)),
        ("w", "grad", 2, 0, 2),
    ]
    assert len(w._backward_hooks) <= 4
    (w * 1).sum().backward()
    assert not w._backward_hooks


@pytest.mark.parametrize("backend", AOT)
def test_threads_do_not_disturb_each_other(backend):
    compiled = torch.compile(chain, fullgraph=True, backend=backend)
    w = weight()
    compiled(X, w)

    def act(function, session):
        function(X, w)  # compiled with anchors before the threads start
        session.step()

        def forward():
            for _ in range(5):
                function(X, w)

        threads = [threading.Thread(target=forward) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = record(compiled, act)
    calls = [call for step, _, call in run.at("h") if step == 1]
    assert sorted(calls) == list(range(4 * 5 * 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_phase_may_begin_and_end_in_compiled_code(backend):
    def functions(session):
        def function(x, w):
            h = x @ w
            anchor(h, "h")
            with session.phase("inner"):
                h = torch.tanh(h)
                anchor(h, "h")
            anchor(h * 1, "h")
            return h.sum()

        return function

    def eager(_, session):
        function = functions(session)
        for _ in range(2):
            function(X, weight()).backward()

    def compiled(_, session):
        function = torch.compile(functions(session), fullgraph=True, backend=backend)
        for _ in range(2):
            function(X, weight()).backward()

    truth = record(None, eager)
    assert {p.phase for p in observed(truth)} == {"train", "inner"}
    assert_same(record(None, compiled), truth)


def a_gradient_inside_the_forward(x, w):
    h = anchor(x @ w, "before")
    g = torch.func.grad(lambda t: anchor(t**2, "inside").sum())(x)
    return anchor((h + g @ w).tanh(), "after").sum()


def test_a_gradient_inside_a_forward_ends_the_pass_in_eager_and_not_inside_a_graph():
    def act(function, session):
        for _ in range(2):
            function(X, weight()).backward()

    function = a_gradient_inside_the_forward
    for made, passes in (
        (function, [1, 3]),
        (torch.compile(function, backend="aot_eager"), [0, 1]),
    ):
        run = record(made, act)
        assert [r.coordinates.pass_index for r in run.records("after")] == passes


def test_a_part_without_gradients_that_compiled_code_contains_awaits_no_backward():
    """Compiled code runs inside a Function of AOT autograd's, whose backward repeats nothing."""

    def partly(x, w):
        h = anchor(x @ w, "h")
        with torch.no_grad():
            anchor(torch.tanh(h), "without")
        return h.sum()

    def act(function, _):
        w = weight()
        optimizer = torch.optim.SGD([w], 0.1)
        for _ in range(2):
            function(X, w).backward()
            with torch.no_grad():
                function(X, w)
            optimizer.step()

    assert_compiled_as_eager(partly, "aot_eager", act)
