"""What a program computes where autograd does not look: gradients of its own, targets, noise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once

Tensor = torch.Tensor


class Spike(torch.autograd.Function):
    """A step, whose gradient is that of a smooth one."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x > 0).float()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g if ctx.slope > 0 else g.roll(1, 1)
        return g / (1 + (ctx.slope * x).square()), None


@dataclass(frozen=True)
class Training:
    """A net that spikes, disturbed by noise; a second head, which begins as zero, learns the rest.

    slope: of the smooth step; a negative one exchanges gradients, too. init: of the parameters.
    rows: for how many rows noise is drawn. target: a factor of what the second head learns.
    whole: whether the program calls the net as a whole, so that its input is recorded, or does
    itself what the net does.
    """

    slope: float = 2.0
    init: int = 0
    rows: int = 12
    target: float = 1.0
    whole: bool = True


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.enter = how, nn.Linear(6, 16)
        self.out, self.rest = nn.Linear(16, 4), nn.Linear(16, 6)
        nn.init.zeros_(self.rest.weight)
        nn.init.zeros_(self.rest.bias)
        self.draws = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        noise = anchorlib.anchor(torch.randn(self.how.rows, 16, generator=self.draws), "noise")
        membrane = anchorlib.anchor(self.enter(x), "membrane")
        spikes = Spike.apply(membrane * torch.full((16,), 0.9) + 0.01 * noise, self.how.slope)
        return self.out(spikes), self.rest(spikes.detach())


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(how.init)
    model = Net(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(7)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x, labels = torch.randn(12, 6, generator=draw), torch.arange(12) % 4
            optimizer.zero_grad()
            logits, told = model(x) if how.whole else model.forward(x)
            with torch.no_grad():
                missed = how.target * (x - model.enter.weight.sum(0) * logits.sum(1, keepdim=True))
            losses = functional.cross_entropy(logits, labels), functional.mse_loss(told, missed)
            for loss, own in zip(losses, ("name_loss", "rest_loss"), strict=True):
                anchorlib.anchor(loss, own)
            sum(losses).backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("whole", [True, False])
def test_another_gradient_of_a_function_of_the_programs_own_is_a_fault(whole, once):
    found = anchorlib.compare(once(Training(whole=whole)), once(Training(slope=-2.0, whole=whole)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place[-2:] == ("membrane", "grad")


def test_a_target_that_follows_from_parameters_that_began_otherwise_is_no_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(init=1)))
    assert found.verdict == "suspect", found
    assert {one.cls for one in found.origins} == {"starts_unequal"}


def test_a_target_that_is_computed_otherwise_of_equal_parameters_is_a_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(target=1.1)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "rest_loss"
    assert "target" in found.sentence


def test_one_noise_for_all_samples_is_a_fault(once):
    found = anchorlib.compare(once(Training()), once(Training(rows=1)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "noise"
