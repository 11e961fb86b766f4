"""Modules that one run calls otherwise for the same work are no fault; faults in them are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.training import perturbed
from tests.once import Once

BATCH, WIDE = 12, 16


@dataclass(frozen=True)
class Training:
    """A layer of messages along edges, and two heads with a loss each.

    calls: how the layer is called: at "once", for each "row", for the rows of "edges", or at once
    with rows "turned". weighs: of what weights are made, "probabilities" or "logits". turn: which
    head's rows come first. backward: of "both" losses at once, or of "each".
    everything: what is recorded; else by default.
    fault: what is wrong besides: the "sign" of messages, a "lost" half of their gradient, a row
    that is "left" out, logits that are "cut" off from what made them, a "scale" of the first
    loss, the "width" of an unused probe; or the sign of messages is wrong from the second step
    on, "late".
    """

    calls: str = "once"
    weighs: str = "probabilities"
    turn: str = "first"
    backward: str = "both"
    everything: bool = True
    fault: str = ""


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.step = how, 0
        self.enter, self.message = nn.Linear(6, WIDE), nn.Linear(WIDE, WIDE)
        self.gate = nn.Linear(WIDE, 8)
        self.head = nn.Linear(WIDE, 12)
        self.probe = nn.Linear(WIDE, 5 if how.fault == "width" else 4)

    def forward(self, x, sources):
        how, h = self.how, self.enter(x).tanh()
        h = h * self.weights(h)
        rows = h[:-1] if how.fault == "left" else h
        if how.calls == "once":
            told = self.message(h)[sources]
        elif how.calls == "turned":
            told = self.message(rows.flip(0)).flip(0)[sources]
        elif how.calls == "row":
            told = torch.cat([self.message(row) for row in rows.split(1)])
            told = functional.pad(told, (0, 0, 0, len(h) - len(told)))[sources]
        else:
            told = self.message(h[sources])
        told = -told if how.fault == "sign" or (how.fault == "late" and self.step) else told
        self.step += 1
        told = told / 2 + (told / 2).detach() if how.fault == "lost" else told
        self.probe(h.detach())
        h = h + torch.zeros_like(h).index_add(0, sources.flip(0), told)
        halves = h.chunk(2)
        if how.turn == "first":
            return self.head(halves[0]), self.head(halves[1])
        last = self.head(halves[1])
        return self.head(halves[0]), last

    def weights(self, h):
        """How much each row counts: the first of two probabilities, which have the sum 1."""
        logits = self.gate(h)
        probabilities = anchorlib.anchor(logits.softmax(-1), "probabilities")
        self.evenness = probabilities.square().mean()
        if self.how.weighs == "logits":
            of = logits.detach() if self.how.fault == "cut" else logits
            return of[:, :2].softmax(-1)[:, :1]
        two = probabilities[:, :2]
        return (two / two.sum(-1, keepdim=True))[:, :1]


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    kinds = {"tensors": "*"} if how.everything else {}
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, **kinds)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(BATCH, 6, generator=draw)
            sources = torch.randperm(2 * BATCH, generator=draw) % BATCH
            one, two = model(x, sources)
            labels = torch.randint(0, 3, (BATCH // 2,), generator=draw)
            first = functional.cross_entropy(one, labels) * (2 if how.fault == "scale" else 1)
            second = two.square().mean() + model.evenness
            if how.backward == "both":
                anchorlib.anchor(first + second, "loss").backward()
            else:
                anchorlib.anchor(first, "loss").backward(retain_graph=True)
                anchorlib.anchor(second, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN, SPARING = Training(), Training(everything=False)
OTHERWISE = [
    {"calls": "row"},
    {"calls": "edges"},
    {"calls": "turned"},
    {"weighs": "logits"},
    {"turn": "last"},
    {"backward": "each"},
]


@pytest.mark.parametrize("one", [PLAIN, SPARING], ids=["everything", "by default"])
@pytest.mark.parametrize("changes", OTHERWISE, ids=str)
def test_the_same_work_in_other_calls_is_no_fault(one, changes, once):
    for pair in ((one, replace(one, **changes)), (replace(one, **changes), one)):
        found = anchorlib.compare(*map(once, pair))
        assert found.verdict in ("suspect", "expected"), found
        assert "otherwise for the same work" in " ".join(found.notes)


def test_noise_covers_other_calls_and_no_fault_that_begins_later(tmp_path):
    train(PLAIN, "a", tmp_path)
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            train(PLAIN, "a", tmp_path)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    for fault, verdict in (("", "expected"), ("late", "unexpected")):
        train(replace(PLAIN, calls="row", fault=fault), f"b{fault}", tmp_path)
        found = anchorlib.compare("a", f"b{fault}", store=tmp_path, noise=noise)
        assert found.verdict == verdict, found


FAULTS = ["sign", "lost", "scale", "width"]


BESIDE = [
    *((changes, fault) for changes in OTHERWISE for fault in FAULTS),
    ({"calls": "row"}, "left"),
    ({"weighs": "logits"}, "cut"),
]
"""Faults beside other calls. By default, nothing is recorded of what a probe learns."""


@pytest.mark.parametrize(
    ("one", "changes", "fault"),
    [
        *((PLAIN, changes, fault) for changes, fault in BESIDE),
        *((SPARING, changes, fault) for changes, fault in BESIDE if fault != "width"),
    ],
    ids=str,
)
def test_a_fault_beside_other_calls_is_one(one, changes, fault, once):
    found = anchorlib.compare(once(one), once(replace(one, **changes, fault=fault)))
    assert found.verdict == "unexpected", found
    assert "otherwise for the same work" not in " ".join(found.notes)
