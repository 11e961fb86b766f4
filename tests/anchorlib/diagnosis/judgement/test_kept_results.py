"""Results of earlier steps that a program keeps, detached: what reads them rounds as they did."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

LATE, RATE = 6, 0.053


@dataclass(frozen=True)
class Training:
    """A generator, and a critic that judges what the generator made a step ago, from LATE on.

    flips: whether the generator's columns are added up in the opposite order, which rounds
    otherwise. factor: of what the pool hands out.
    """

    flips: bool = False
    factor: float = 1.0


class Generator(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.enter, self.leave = nn.Linear(8, 24), nn.Linear(24, 6)

    def forward(self, x):
        h = self.enter(x).tanh()
        if self.how.flips:
            return (h.flip(1) @ self.leave.weight.T.flip(0)) + self.leave.bias
        return (h @ self.leave.weight.T) + self.leave.bias


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    make = Generator(how)
    judge = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizers = [torch.optim.SGD(one.parameters(), lr=RATE) for one in (make, judge)]
    draw, kept = torch.Generator().manual_seed(1), []
    with anchorlib.start(name, store=store, recorder="thread") as session:
        names = ["make.enter", "make.output", "make.*@grad", "make.*@updated"]
        session.watch(make, tensors=names, optimizer=optimizers[0], prefix="make")
        # called as a part alone, so that what it is given has no record
        session.watch(nn.ModuleDict({"judge": judge}), tensors="*", optimizer=optimizers[1])
        for step in range(8):
            if step >= LATE:  # until then both runs' critics are equal
                told = judge(how.factor * kept[-1])
                anchorlib.anchor(told.square().mean(), "judged").backward()
                optimizers[1].step()
                optimizers[1].zero_grad()
            x = torch.randn(16, 8, generator=draw)
            made = make(x)
            anchorlib.anchor((made - x[:, :6].sin()).square().sum(), "missed").backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            kept.append(made.detach().clone())


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()


def test_what_reads_a_kept_result_rounds_as_it_did(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, flips=True)))
    assert found.verdict in ("suspect", "expected"), found


@pytest.mark.parametrize("flips", [False, True])
def test_a_kept_result_that_is_handed_out_otherwise_is_a_fault(flips, once):
    found = anchorlib.compare(once(PLAIN), once(Training(flips, 1.001)))
    assert found.verdict == "unexpected", found
