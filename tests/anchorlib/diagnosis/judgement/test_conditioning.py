"""What a norm enlarges is rounding; a fault of the norm is none, whatever its input looks like."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib

Tensor = torch.Tensor
Change = Callable[[Tensor], Tensor]


def uneven(size: float) -> nn.Conv2d:
    """A convolution with one output channel that is nearly constant, and far from zero."""
    stem = nn.Conv2d(16, 8, 1)
    with torch.no_grad():
        stem.weight[3].mul_(size)
        stem.bias[3] = 0.3
    return stem


def far() -> nn.Conv2d:
    """A convolution whose channels hardly vary, each about a mean of its own."""
    stem = nn.Conv2d(16, 8, 1)
    with torch.no_grad():
        stem.weight.mul_(1e-2)
        stem.bias.copy_(torch.randn(8))
    return stem


class Net(nn.Module):
    def __init__(self, stem: nn.Module, norm: Change, change: Change) -> None:
        super().__init__()
        self.stem, self.norm, self.change = stem, norm, change
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x))
        y.data.copy_(self.change(y.data))  # autograd goes on as if the norm had made it
        return self.out(anchorlib.anchor(y, "normed").mean((2, 3)))


def of_batch(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, torch.ones(8), torch.zeros(8), training=True)


def one_image(y: Tensor) -> Tensor:
    y = y.clone()
    y[0, :, 0] *= 1.02
    return y


def one_channel(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, 1] *= 1.002
    return y


def high() -> nn.Conv2d:
    """A convolution whose output is a hundred times as large as it varies."""
    stem = nn.Conv2d(16, 8, 1)
    with torch.no_grad():
        stem.bias.fill_(60.0)
    return stem


CASES = {
    "layer norm, a factor within what its mean may round by": (
        high,
        lambda x: functional.layer_norm(x, x.shape[1:]),
        lambda y: y * (1 + 2.0**-15),
    ),
    "batch norm, a factor": (lambda: uneven(1e-6), of_batch, lambda y: y * 1.01),
    "batch norm, one row of an image": (lambda: uneven(1e-6), of_batch, one_image),
    "batch norm, neighbours mixed": (
        lambda: uneven(1e-6),
        of_batch,
        lambda y: 0.98 * y + 0.02 * y.roll(1, 0),
    ),
    "group norm": (far, lambda x: functional.group_norm(x, 1), one_channel),
    "layer norm of three axes": (far, lambda x: functional.layer_norm(x, x.shape[1:]), one_channel),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_of_a_norm_is_no_rounding_where_its_input_hardly_varies(tmp_path, case):
    stem, norm, change = CASES[case]
    for run, how in (("a", lambda y: y), ("b", change)):
        torch.manual_seed(0)
        model = Net(stem(), norm, how)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(6, 16, 4, 4)).square().mean().backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert (found.verdict, found.origins[0].place.name) == ("unexpected", "normed")
