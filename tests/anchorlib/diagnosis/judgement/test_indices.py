"""Indices, targets and operands by which a program reads: which run takes another of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once

NODES, EDGES, CLASSES = 24, 60, 4


@dataclass(frozen=True)
class Training:
    """Messages along the edges of a graph; a value of each node's chosen class.

    added: at which end messages are added up. swapped: whether the model is given the two ends of
    edges in the other order. data: seed of the edges. level: of the targets. delta, sign: of the
    loss. turned: whether targets have an axis more. everything: what is recorded; else by default.
    turn: which ends of edges come in another order: none, all or src alone.
    centred: whether the head subtracts its mean. looked: whether it runs under `no_grad` first.
    """

    added: str = "dst"
    swapped: bool = False
    data: int = 0
    level: float = 1.0
    delta: float = 1.0
    sign: float = 1.0
    turned: bool = False
    everything: bool = True
    centred: bool = True
    looked: bool = False
    turn: str = "none"


class Head(nn.Module):
    def __init__(self, centred: bool) -> None:
        super().__init__()
        self.centred, self.out = centred, nn.Linear(8, CLASSES)

    def forward(self, x):
        y = self.out(x)
        return y - y.mean(1, keepdim=True) if self.centred else y


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.first, self.head = how, nn.Linear(6, 8), Head(how.centred)

    def forward(self, x, src, dst):
        h = self.first(x).tanh()
        at = dst if self.how.added == "dst" else src
        return self.head(torch.zeros_like(h).index_add(0, at, h[src]))


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    kinds = {"tensors": "*"} if how.everything else {}
    draw = torch.Generator().manual_seed(how.data)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, **kinds)
        for _ in range(2):
            x = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(1))
            src, dst = torch.randint(0, NODES, (2, EDGES), generator=draw)
            src = src if how.turn == "none" else src.flip(0)
            dst = dst.flip(0) if how.turn == "all" else dst
            ends = (dst, src) if how.swapped else (src, dst)
            if how.looked:
                with torch.no_grad():
                    model.head(torch.ones(NODES, 8))
            chosen = model(x, *ends).gather(1, (torch.arange(NODES) % CLASSES)[:, None])[:, 0]
            target = torch.linspace(-1, 2, NODES) * how.level
            target = target[:, None] if how.turned else target
            loss = how.sign * functional.huber_loss(
                *torch.broadcast_tensors(chosen, target), delta=how.delta
            )
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


PLAIN, SPARING = Training(), Training(everything=False)
LOOKED = Training(looked=True)
FAULTS = {
    "end": (PLAIN, {"added": "src"}, "IndexAddBackward0 index input:2 | input:1"),
    "end, by default": (SPARING, {"added": "src"}, ", as in A's Index"),
    "swapped": (PLAIN, {"swapped": True}, "B is given here what A is given as input:2"),
    "target": (PLAIN, {"level": 1.5}, "the loss's target differs: 24 of mean 0.5"),
    "delta": (PLAIN, {"delta": 0.5}, "HuberLossBackward0 delta 1 | 0.5"),
    "broadcast": (PLAIN, {"turned": True}, "an Expand that the other lacks (a broadcast?)"),
    "another operation, by default": (SPARING, {"sign": -1.0}, "Mul"),
    "under no_grad first": (LOOKED, {"centred": False}, "A has a Sub that the other lacks"),
}
CONTROLS = {
    "other edges": (PLAIN, {"data": 1}, ("as in A's", "is given here")),
    "the ends of some edges exchanged": (PLAIN, {"turn": "src alone"}, ("each is compared",)),
    "other edges, by default": (SPARING, {"data": 1}, ("as in A's",)),
    "another delta is no other target": (PLAIN, {"delta": 0.5}, ("target", "broadcast")),
    "another target is no broadcast": (PLAIN, {"level": 1.5}, ("broadcast", "index")),
}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def told(one, two) -> tuple[str, str]:
    """The verdict, and all that is said in words."""
    found = anchorlib.compare(one, two)
    return found.verdict, "; ".join([found.sentence, *(origin.why for origin in found.origins)])


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_program_reads_by_is_named(fault, once):
    one, changes, words = FAULTS[fault]
    verdict, said = told(once(one), once(replace(one, **changes)))
    assert verdict == "unexpected", said
    assert words in said


@pytest.mark.parametrize("control", CONTROLS)
def test_nothing_is_said_of_what_both_read_by(control, once):
    one, changes, words = CONTROLS[control]
    verdict, said = told(once(one), once(replace(one, **changes)))
    assert (verdict == "suspect") == ("data" in changes or "turn" in changes), said
    assert [word for word in words if word in said] == []


def test_edges_in_another_order_are_the_same_edges(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, turn="all")))
    assert {one.cls for one in found.origins} <= {"rounding"}, found.sentence
    assert found.verdict in ("suspect", "expected")
    assert "in another order: each is compared" in found.sentence


def test_a_fault_beside_edges_in_another_order_is_found(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, turn="all", level=1.5)))
    assert found.verdict == "unexpected"
    bad = [one.place.name for one in found.origins if one.cls == "not_rounding"]
    assert bad
    assert set(bad) <= {"loss", "head", "output"}


def test_a_loss_in_parts_has_no_other_target(tmp_path):
    """The target of a part is another tensor than the target of the whole."""
    for run in ("a", "b"):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                x, y = torch.randn(12, 6, generator=draw), torch.rand(12, 3, generator=draw)
                out = model(x)
                parts = out.split(4 if run == "b" else 12), y.split(4 if run == "b" else 12)
                losses = [functional.huber_loss(*both) for both in zip(*parts, strict=True)]
                optimizer.zero_grad()
                anchorlib.anchor(torch.stack(losses).mean(), "loss").backward()
                optimizer.step()
    verdict, said = told(*(tmp_path / f"{run}.zarr" for run in "ab"))
    assert verdict in ("expected", "suspect"), said
    assert "target" not in said
