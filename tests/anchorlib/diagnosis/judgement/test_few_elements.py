"""Noise that lies in few elements says little of how many turn; a fault is larger than they are."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A lookup of which some elements turn out otherwise, between two layers.

    turned: how many elements. by: by how much each does. since: the first of them. low: whether it
    trains under autocast. hidden: whether the lookup reads a value that is detached from what made
    it. factor: of the lookup. split: whether the first product is a sum of two.
    """

    turned: int = 0
    by: float = 0.0
    since: int = 0
    low: bool = False
    hidden: bool = False
    factor: float = 1.0
    split: bool = False


class Lookup(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self._how, self.share = how, nn.Parameter(torch.tensor(0.5))

    def forward(self, x, beside):
        h = torch.lerp(x, beside, self.share) if self._how.hidden else x * 1.0
        h = h * self._how.factor
        flat = h.data.view(-1)
        flat[self._how.since : self._how.since + 7 * self._how.turned : 7] += self._how.by
        return h


class Entry(nn.Linear):
    def forward(self, x):
        if not self._split:
            return super().forward(x)
        parts = functional.linear(x[..., :4], self.weight[:, :4])
        return parts + functional.linear(x[..., 4:], self.weight[:, 4:], self.bias)


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.enter, self.lookup, self.head = Entry(8, 32), Lookup(how), nn.Linear(32, 5)
        self.enter._split, self.low = how.split, how.low

    def forward(self, x):
        h = self.enter(x)
        beside = torch.tanh(h.detach().float() * 3)
        turned = 6 * torch.sign(h.detach()).mean(-1, keepdim=True) if self.low else 0
        return self.head(self.lookup(x.repeat(1, 1, 4), beside)) + h.mean() + turned


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, tensors="*")
        optimizer.zero_grad()
        x = torch.randn(6, 9, 8, generator=draw)
        with torch.autocast("cpu", torch.bfloat16) if how.low else nullcontext():
            loss = model(x).float().square().mean()
        anchorlib.anchor(loss, "loss").backward()
        optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def judged(once, one: Training) -> anchorlib.Comparison:
    noise = [once(Training(2, 1e-6, since)) for since in (100, 200, 300)]
    return anchorlib.compare(once(Training()), once(one), noise=noise)


def test_a_few_other_elements_are_noise_where_the_noise_is_a_few_elements(once):
    found = judged(once, Training(3, 1e-4, 400))
    assert found.leaves_noise is None, found
    assert any("3 of the 1,728 elements of lookup" in note for note in found.notes), found.notes


@pytest.mark.parametrize(("turned", "by"), [(200, 1e-4), (3, 1.0)])
def test_many_elements_or_a_large_difference_leave_it(turned, by, once):
    found = judged(once, Training(turned, by))
    assert found.leaves_noise is not None, found
    assert found.leaves_noise.place.name == "lookup"


def test_noise_in_many_elements_is_judged_whole(once):
    noise = [once(Training(200, 1e-7, since)) for since in (0, 1, 2)]
    found = anchorlib.compare(once(Training()), once(Training(3, 1e-4, 400)), noise=noise)
    assert found.leaves_noise is not None, found


def test_what_reads_a_detached_value_rounds_as_that_does_under_autocast(once):
    one = Training(low=True, hidden=True)
    found = anchorlib.compare(once(one), once(Training(low=True, hidden=True, split=True)))
    assert found.verdict == "suspect", found
    assert any(origin.place.name == "lookup" for origin in found.origins), found


def test_a_fault_in_it_is_larger_than_that(once):
    one = Training(low=True, hidden=True)
    other = Training(low=True, hidden=True, split=True, factor=1.1)
    found = anchorlib.compare(once(one), once(other))
    assert found.verdict == "unexpected", found
