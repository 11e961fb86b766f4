"""A backward operation has module and line of its forward, however torch came to run it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from anchorlib.capture.tracing import code_places
from anchorlib.capture.tracing.code_places import line_above
from anchorlib.capture.tracing.forward_sites import ForwardSite, ForwardSites
from anchorlib.operations import read_entries
from tests.by_hand import TanhByHand
from tests.recording import recording

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def small():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def of_steps(model, step, optimizer=None, steps=2):
    """The operations of some steps. Without an optimizer to end them, they end here."""
    with recording() as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        run.session.trace(steps)
        for _ in range(steps):
            step()
            if optimizer is None:
                run.session.step()
    return read_entries(run.sink.traced)


def homeless(ops):
    """The backward operations without module, but for those whose forward had none either."""
    forwards = {(op.step, op.seq): op for op in ops if op.stage == "forward"}
    return [
        (op.step, op.op, op.node)
        for op in ops
        if op.stage == "backward" and not op.module
        if (forward := forwards.get((op.step, op.seq))) is None or forward.module
    ]


def test_the_backward_of_a_backward_has_module_and_line_of_the_first_one():
    model = small()

    def penalised():
        x = X.clone().requires_grad_()
        out = model(x).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        (out + slope.square().sum()).backward()

    ops = of_steps(model, penalised, steps=1)
    second = [op for op in ops if op.node in {"TanhBackwardBackward0", "MmBackward0"}]
    assert {op.module for op in second if op.node == "TanhBackwardBackward0"} == {"1"}
    assert {op.module for op in second if op.node == "MmBackward0"} == {"0", "2"}
    assert all(op.where.startswith("test_forward_sites.py:") for op in ops)
    assert homeless(ops) == []


def test_a_backward_that_runs_after_its_step_has_ended_has_module_and_line_of_its_forward():
    both = nn.ModuleDict({"actor": small(), "critic": small()})
    first, second = (torch.optim.SGD(one.parameters(), 0.1) for one in both.values())

    def step():
        losses = [model(X).square().mean() for model in both.values()]
        for loss, optimizer in zip(losses, (first, second), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    ops = of_steps(both, step, first)
    late = [op for op in ops if op.step == 1 and op.stage == "backward"]
    forward = next(op for op in ops if op.module == "critic.1" and op.stage == "forward")
    tanh = [op for op in late if op.node == "TanhBackward0" and op.module.startswith("critic")]
    assert {(op.module, op.where) for op in tanh} == {("critic.1", forward.where)}
    told = {op.module for op in late if "Mean" not in op.node and "Pow" not in op.node}
    assert told == {f"{side}.{at}" for side in both for at in range(3)}


@pytest.mark.slow
def test_a_compiled_backward_that_runs_after_its_step_has_ended_has_modules_too():
    both = nn.ModuleDict({"actor": small(), "critic": small()})
    first, second = (torch.optim.SGD(one.parameters(), 0.1) for one in both.values())
    called = [torch.compile(one, backend="aot_eager") for one in both.values()]

    def step():
        losses = [model(X).square().mean() for model in called]
        for loss, optimizer in zip(losses, (first, second), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    ops = of_steps(both, step, first)
    late = [op for op in ops if op.step == 1 and op.op == "aten.tanh_backward.default"]
    assert [op.module for op in late] == ["critic.1", "actor.1"]


def test_derivatives_inside_a_forward_have_the_module_that_takes_them():
    class Slopes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x):
            slopes = torch.func.vmap(torch.func.grad(lambda one: self.inner(one).sum()))(x)
            return slopes + self.inner(x).sum()

    model = Slopes()
    ops = of_steps(model, lambda: model(X).square().mean().backward(), steps=1)
    assert homeless(ops) == []
    tanh = [op for op in ops if op.op == "aten.tanh_backward.default"]
    assert {op.module for op in tanh} == {"inner.1"}


def test_a_function_of_the_users_that_runs_nothing_takes_no_module_of_what_runs_next():
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g.neg()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(Reversed.apply(x * 1))

    model = Net()
    ops = of_steps(model, lambda: model(X.clone().requires_grad_()).sum().backward(), steps=1)
    (op,) = (op for op in ops if op.op == "aten.neg.default")
    assert op.module == ""


def test_a_function_of_the_users_and_its_backward_share_a_number():
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    model[1].forward = TanhByHand.apply
    ops = of_steps(model, lambda: model(X).sum().backward(), steps=1)
    (forward,) = (op for op in ops if op.op == "aten.tanh.default")
    own = [op for op in ops if op.node == "TanhByHandBackward"]
    assert [op.op for op in own][-3:] == ["aten.mul.Tensor", "aten.rsub.Scalar", "aten.mul.Tensor"]
    assert {(op.module, op.seq) for op in own} == {("1", forward.seq)}


def test_a_gradient_that_is_put_into_a_parameter_has_the_line_of_the_backward():
    model = nn.Linear(6, 3)

    def step():
        loss = functional.mse_loss(model(X), torch.zeros(4, 3))
        loss.backward()

    ops = of_steps(model, step, steps=1)
    line = step.__code__.co_firstlineno + 2
    kept = [op for op in ops if op.node == "torch::autograd::AccumulateGrad"]
    assert {(op.module, op.where) for op in kept} == {("output", f"test_forward_sites.py:{line}")}


def test_the_losses_own_operations_have_a_line_where_they_have_no_module():
    model = small()

    def step():
        out = model(X)
        loss = -0.5 * torch.sum(1 + out - out.pow(2) - out.exp())
        loss.backward()

    ops = of_steps(model, step, steps=1)
    line = step.__code__.co_firstlineno + 2
    own = [op for op in ops if op.stage == "backward" and not op.module]
    assert {op.node for op in own} >= {"MulBackward0", "SubBackward0", "ExpBackward0"}
    assert {op.where for op in own} == {f"test_forward_sites.py:{line}"}


def test_lines_are_those_that_run_also_where_code_is_made_anew_without_end(monkeypatch):
    monkeypatch.setattr(code_places, "MOST_LINES", 3)
    for number in range(20):
        here = {"frame": sys._getframe}
        text = "\n" * number + "first = frame()\nlines = [above(first),\n  above(first)]"
        exec(compile(text, f"/made/{number % 2}.py", "exec"), here | {"above": line_above}, here)
        assert here["lines"] == [f"{number % 2}.py:{number + 2}", f"{number % 2}.py:{number + 3}"]
        assert len(code_places._lines) <= 3


def test_of_a_node_without_an_operation_the_one_that_runs_next_is_the_forward():
    sites = ForwardSites()
    sites.next_step(10)
    assert not sites.note_new(10, "before", "net.py:1")
    assert sites.note_new(13, "fc", "net.py:2")
    assert not sites.note_new(13, "act", "net.py:3")
    assert sites.of(12) == ForwardSite(12)
    assert sites.of(12, later=True) == sites.of(13) == ForwardSite(13, "fc", "net.py:2")
    assert sites.of(14, later=True) == ForwardSite(14)
    sites.next_step(13)
    assert sites.of(13).module == "fc"
    assert sites.of(10, later=True) == ForwardSite(10), "made before either step"
    sites.next_step(13)
    assert sites.of(13) == ForwardSite(13)
