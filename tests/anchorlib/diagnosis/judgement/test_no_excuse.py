"""Faults that look benign: equal bits of two tensors, other shapes, passes nobody asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import anchorlib

Tensor = torch.Tensor


class Critics(nn.Module):
    """Two critics that begin with the same parameters, so that their values are the same bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 1, bias=False)
        self.second = copy.deepcopy(self.first)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


class Norms(nn.Module):
    """Four norms whose weights are all ones at the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for number, norm in enumerate(self.norms, 1):
            x = torch.tanh(norm(x) * number)
        return x


class Heads(nn.Module):
    """A head, and a probe of `width` outputs that nothing is computed from."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk, self.head, self.probe = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        probed = self.probe(h.detach())
        return self.head(h), probed


def record(
    run: str,
    model: nn.Module,
    loss: Callable[[object], Tensor],
    tensors: Sequence[str] | None,
    touch: Callable[[nn.Module], object] = lambda _model: None,
) -> None:
    """One step of a training whose gradients `touch` may change before the optimizer reads them."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with anchorlib.start(run) as session:
        session.watch(model, optimizer=optimizer, tensors=tensors)
        torch.manual_seed(1)
        loss(model(torch.randn(32, 8))).backward()
        touch(model)
        optimizer.step()


def both(share: float) -> Callable[[tuple[Tensor, Tensor]], Tensor]:
    return lambda told: ((told[0] - 1) ** 2).mean() + share * ((told[1] - 1) ** 2).mean()


def overwritten(model: nn.Module) -> None:
    model.norms[3].weight.grad.copy_(model.norms[0].weight.grad)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_STORE", str(tmp_path))


def test_twins_with_equal_bits_are_two_tensors():
    for run, share in (("a", 1.0), ("b", 0.5)):
        torch.manual_seed(0)
        record(run, Critics(), both(share), ["*@value", "*@grad"])
    assert anchorlib.compare("a", "b").verdict == "unexpected"


def test_a_gradient_that_another_parameters_replaced_is_unexpected():
    for run, touch in (("a", lambda _model: None), ("b", overwritten)):
        torch.manual_seed(0)
        record(run, Norms(), lambda y: y.pow(3).mean(), ["*@value", "*@grad"], touch)
    assert anchorlib.compare("a", "b").verdict == "unexpected"


def test_a_head_of_another_width_is_unexpected_though_nothing_follows_from_it():
    for run, width in (("a", 10), ("b", 20)):
        torch.manual_seed(0)
        record(run, Heads(width), lambda told: sum(one.pow(2).mean() for one in told), None)
    assert anchorlib.compare("a", "b").verdict == "unexpected"


def test_passes_that_a_run_was_not_asked_to_record_are_not_missing():
    for run, steps, nudge in (("a", None, 0.0), ("b", range(3), 1.0)):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with anchorlib.start(run) as session:
            session.watch(model, optimizer=optimizer, tensors=["*@updated"])
            session.watch(model, tensors=["*@pass_grad"], steps=steps)
            for step in range(6):
                model.zero_grad()
                model(torch.full((2, 8), 0.5)).pow(2).mean().backward()
                if step == 4 and nudge:
                    with torch.no_grad():
                        model.weight.grad.mul_(1 + nudge * 2**-20)
                optimizer.step()
    told = anchorlib.compare("a", "b")
    assert not any("stepped again" in origin.why for origin in told.origins)


class Coding(nn.Module):
    """It hands out the code of which it makes its answer.

    fault: "code": half of the gradient of the code's layer is lost. "answer": so is half of that of
        the answer's. No value shows either.
    """

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.inner, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = 2 * self._through("code", self.inner(x))
        return self._through("answer", self.out(code.tanh())), code

    def _through(self, name: str, x: Tensor) -> Tensor:
        return x / 2 + (x / 2).detach() if self.fault == name else x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "origin"), [("code", "inner@grad"), ("answer", "out@grad"), ("loss", "inner@grad")]
)
def test_a_gradient_that_one_run_saw_in_part_excuses_no_fault_before_or_behind_it(fault, origin):
    torch._dynamo.reset()
    for run, planted in (("a", ""), ("b", fault)):
        torch.manual_seed(0)
        model, share = Coding(planted), 0.2 if planted == "loss" else 0.1
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with anchorlib.start(run) as session:
            # The plain model: its outputs are then seen from outside the compiled code.
            session.watch(model, optimizer=optimizer, tensors=["*@grad", "*@pass_grad", "out*"])
            call = torch.compile(model, backend="aot_eager") if run == "b" else model
            answer, code = call(torch.randn(32, 8))
            (answer.square().mean() + share * code.abs().mean()).backward()
            optimizer.step()
    told = anchorlib.compare("a", "b")
    assert "output:1" in anchorlib.open_run("b").header()["grad.from_outside"]
    assert told.verdict == "unexpected"
    named = [f"{o.place.name}@{o.place.kind}" for o in told.origins if o.cls == "not_rounding"]
    assert origin in named, told.sentence
