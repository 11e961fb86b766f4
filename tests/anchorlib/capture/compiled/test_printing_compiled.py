"""`print_tensor` in compiled code: once an execution, without a graph break."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from anchorlib import NotATensorError, OptionError, print_tensor
from tests.anchorlib.capture.compiled.observing import BACKENDS, QUIET, TRACING, weight

pytestmark = QUIET


def printed(function, times=2):
    out = io.StringIO()
    with redirect_stderr(out):
        for n in range(times):
            loss = function(torch.full((2, 3), n + 1.0))
            loss.backward()
    return out.getvalue()


def make():
    w = weight()

    def function(x):
        h = x @ w
        print_tensor(h, "h", digits=2)
        print_tensor(w, "w")
        print_tensor(w, "w")
        print_tensor(h > 0, "mask", float_format="none")
        print_tensor(h, print_gradient=False)

        def block(h):
            h = torch.tanh(h)
            print_tensor(h, "inside")
            return h * 2

        return checkpoint(block, h, use_reentrant=False).sum()

    return function, w


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_prints_what_eager_code_prints(backend):
    truth = printed(make()[0])
    assert "inside_gradient: " in truth
    assert truth.count("\nw_gradient: ") == 2
    function, w = make()
    run = printed(torch.compile(function, fullgraph=True, backend=backend))
    assert sorted(run.splitlines()) == sorted(truth.splitlines())
    assert len(w._backward_hooks) <= 2


@pytest.mark.parametrize("backend", TRACING)
def test_a_leaf_that_is_no_longer_wanted_is_no_longer_printed(backend):
    w = weight()

    def function(x, wanted):
        print_tensor(w, "w", wanted)
        return (x @ w).sum()

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    out = io.StringIO()
    with redirect_stderr(out):
        for wanted in (True, True, False, True):
            compiled(torch.ones(2, 3), wanted).backward()
    assert out.getvalue().count("w_gradient: ") == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_are_those_of_eager_code(backend):
    for wrong in (
        lambda x: print_tensor(x, digits=-1),
        lambda x: print_tensor(x, float_format="hex"),
        lambda x: print_tensor(3) + x,
    ):
        with pytest.raises((OptionError, NotATensorError)) as eager:
            wrong(torch.ones(1))
        with pytest.raises(type(eager.value)) as compiled:
            torch.compile(wrong, fullgraph=True, backend=backend)(torch.ones(1))
        assert str(compiled.value) == str(eager.value)
