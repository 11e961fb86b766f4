"""A weight that begins as zero hides what stands before it from all that is learnt at first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

CLASSES, WIDE = 5, 8


@dataclass(frozen=True)
class Training:
    """A net whose gates are made of a class, by a layer that begins as zero.

    offset: what is added to the mixed embedding, which is told, and taken off again.
    missing: which embedding stands for a class that is left out. approximate: of the GELU.
    """

    offset: float = 0.0
    missing: int = CLASSES
    approximate: str = "none"


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.classes = nn.Embedding(CLASSES + 1, WIDE)
        self.mix, self.act = nn.Linear(WIDE, WIDE, bias=False), nn.GELU(how.approximate)
        self.gates, self.enter = nn.Linear(WIDE, 2 * WIDE), nn.Linear(6, WIDE)
        self.leave = nn.Linear(WIDE, 6)
        for one in (self.gates, self.leave):
            nn.init.zeros_(one.weight)
            nn.init.zeros_(one.bias)

    def forward(self, x, classes, left_out):
        classes = torch.where(left_out, self.how.missing, classes)
        told = anchorlib.anchor(self.mix(self.classes(classes)) + self.how.offset, "told")
        scale, shift = self.gates(self.act(told - self.how.offset)).chunk(2, -1)
        return self.leave((self.enter(x).tanh() * (1 + scale)) + shift)


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(4):
            x = torch.randn(16, 6, generator=draw)
            classes = torch.arange(16) % CLASSES
            made = model(x, classes, torch.arange(16) % 4 == 0)
            optimizer.zero_grad()
            anchorlib.anchor((made - classes[:, None]).square().mean(), "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    ("fault", "origin"),
    [(Training(missing=0), "classes"), (Training(approximate="tanh"), "act")],
)
def test_a_fault_behind_such_a_weight_is_found_where_it_is(fault, origin, once):
    found = anchorlib.compare(once(Training()), once(fault))
    assert found.verdict == "unexpected", found
    place = found.origins[0].place
    assert (place.name, place.kind, place.step) == (origin, "value", 0), found


def test_another_intermediate_result_is_no_fault_there(once):
    found = anchorlib.compare(once(Training()), once(Training(offset=0.5)))
    assert found.verdict in ("suspect", "expected", "identical"), found
