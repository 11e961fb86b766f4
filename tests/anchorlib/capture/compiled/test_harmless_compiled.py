"""What observing does to compiled code: nothing, or the user is told."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch import nn

from anchorlib import anchor
from anchorlib.capture.headers.header import run_header
from tests.anchorlib.capture.compiled.observing import QUIET, X, record, said, weight
from tests.recording import recording

pytestmark = QUIET


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.wide = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)

    def forward(self, x):
        h = self.norm(x)
        h = x + anchor(self.attention(h, h, h, need_weights=False)[0], "attended")
        h = h + self.narrow(nn.functional.gelu(self.wide(h)))
        return anchor(h, "block", grad=False)


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.GELU())


def convolution():
    return nn.Sequential(
        nn.Unflatten(2, (2, 4)), nn.Conv2d(5, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(1)
    )


def of_all_kinds():
    """A model of all three: a graph for each would take far longer."""
    return nn.Sequential(Block(), perceptron(), convolution())


def trained(make, backend, observe):
    """Losses and gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make()
    x = torch.randn(3, 5, 8)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = []

    def train():
        for _ in range(2):
            loss = compiled(x).pow(2).mean()
            loss.backward()
            results.extend([loss.detach(), *(p.grad.clone() for p in model.parameters())])
            optimizer.step()
            optimizer.zero_grad()

    if observe:
        with recording() as run:
            run.session.watch(compiled)
            train()
        assert run.sink.records
    else:
        train()
    return results


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (of_all_kinds, "aot_eager"),
        pytest.param(perceptron, "inductor", marks=pytest.mark.long),
        pytest.param(of_all_kinds, "inductor", marks=pytest.mark.long),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_losses_and_gradients_are_bit_equal_observed_or_not(make, backend):
    unobserved = trained(make, backend, observe=False)
    observed = trained(make, backend, observe=True)
    assert all(torch.equal(a, b) for a, b in zip(unobserved, observed, strict=True))


def low(x, w):
    h = torch.tanh(x.bfloat16() @ w.bfloat16())
    anchor(h, "h")
    anchor(h * 2, "twice")
    return h.float().sum()


def test_low_precision_in_inductor_is_warned_of_once_a_session(caplog):
    function = torch.compile(low, fullgraph=True)
    for _ in range(2):
        caplog.clear()
        record(function)
        (line,) = said(caplog)
        assert "h is bfloat16" in line
        assert "emulate_precision_casts = True" in line
    caplog.clear()
    with torch._inductor.config.patch(emulate_precision_casts=True):
        record(function)
    assert said(caplog) == []


def test_other_backends_round_as_eager_code_does(caplog):
    record(torch.compile(low, fullgraph=True, backend="aot_eager"))
    assert said(caplog) == []


def test_the_run_header_tells_how_compiled_code_rounds(monkeypatch):
    import torch._inductor.config as config

    key = "torch.compile.emulate_precision_casts"
    with config.patch(emulate_precision_casts=False):
        assert run_header({})[key] is False
    with config.patch(emulate_precision_casts=True):
        assert run_header({})[key] is True


def test_nothing_of_a_session_stays_behind():
    function = torch.compile(lambda x, w: anchor(x @ w, "h").sum(), backend="aot_eager")
    w = weight()
    for _ in range(20):
        with recording():
            function(X, w).backward()
    assert w._backward_hooks is None


def test_no_warning_comes_of_ordinary_use(caplog):
    with caplog.at_level(logging.INFO):
        record(torch.compile(lambda x, w: anchor(x @ w, "h").sum(), backend="aot_eager"))
    assert said(caplog) == [
        "anchorlib: a step of run memory weighs 160 B in 2 records (train) on rank 0",
        "anchorlib: run memory, rank 0: 2 steps of 1 pass, ended by session.step(); "
        "4 records, 320 B, in anchors",
    ]


def test_whoever_does_not_compile_does_not_load_the_compiler():
    code = "import sys, anchorlib.capture; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
