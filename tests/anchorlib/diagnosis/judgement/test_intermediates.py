"""Other results on the way to the same learning are no fault; those that something hides are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.diagnosis.training import perturbed
from tests.once import Once

BATCH, ROWS, WIDE = 6, 8, 12
LENGTHS = torch.tensor([8, 5, 7, 3, 6, 8])


@dataclass(frozen=True)
class Training:
    """Padded sequences: a layer, a norm, two experts of which each row takes one, and a head.

    masks: what is cleared at padded places, the norm's "result" or its "input" as well.
    logs: logarithms of probabilities, by "torch" or by "hand".
    turned: whether batches are in the opposite order. chosen: in which order an expert gets its
    rows, "up" or "down". tasks: in which order two losses, with a backward each, are computed.
    fault: what is wrong besides: padded places that are "read", the "weight" of one task, an
    expert's rows that come back "shuffled", or a batch norm of twice its input ("moments").
    """

    masks: str = "result"
    logs: str = "torch"
    turned: bool = False
    chosen: str = "up"
    tasks: str = "one, two"
    carries: bool = False
    everything: bool = True
    fault: str = ""


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.kept = how, 0.0
        self.enter, self.norm = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE)
        self.batch_norm = nn.BatchNorm1d(WIDE)
        self.experts = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(2))
        self.state, self.head = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 5)

    def forward(self, x, inside):
        how, mask = self.how, inside[..., None]
        entered = self.enter(x)
        entered = entered * mask if how.masks == "input" else entered
        normed = self.norm(entered)
        carried, self.kept = self.kept, normed.detach().mean(1) if how.carries else 0.0
        h = normed * (1.0 if how.fault == "read" else mask)
        twice = 2.0 if how.fault == "moments" else 1.0
        h = h + self.batch_norm(twice * h.flatten(0, 1)).view_as(h) * mask
        rows = h.flatten(0, 1)
        own = rows.detach().sum(-1) > 0
        made = torch.zeros_like(rows)
        for one, expert in enumerate(self.experts):
            where = torch.where(own == bool(one))[0]
            where = where if how.chosen == "up" else where.flip(0)
            back = where.flip(0) if how.fault == "shuffled" else where
            made = made.index_add(0, back, expert(rows[where]).tanh())
        state = self.state(made.view_as(h) * mask)
        return self.head(state.sum(1) / 3 + carried)


def loss_of(logits, labels, how):
    if how.logs == "torch":
        logs = logits.log_softmax(-1)
    else:
        logs = logits - logits.logsumexp(-1, keepdim=True)
    return -logs.gather(-1, labels[:, None]).mean()


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    draw = torch.Generator().manual_seed(1)
    inside = torch.arange(ROWS) < LENGTHS[:, None]
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if how.everything else None, optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(BATCH, ROWS, WIDE, generator=draw)
            labels = torch.randint(0, 5, (BATCH,), generator=draw)
            batch = [x, inside, labels]
            x, own, labels = [each.flip(0) for each in batch] if how.turned else batch
            optimizer.zero_grad()
            logits = model(x, own)
            losses = {
                "one": loss_of(logits, labels, how),
                "two": logits.square().mean() * (0.5 if how.fault == "weight" else 1.0),
            }
            for task in how.tasks.split(", "):
                losses[task].backward(retain_graph=True)
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()
OTHERWISE = [
    {"masks": "input", "logs": "hand"},
    {"turned": True, "chosen": "down"},
    {"turned": True},
    {"tasks": "two, one"},
    {"tasks": "two, one", "masks": "input"},
]


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("changes", OTHERWISE, ids=str)
def test_other_results_on_the_way_to_the_same_learning_are_no_fault(everything, changes, once):
    one = replace(PLAIN, everything=everything)
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict in ("suspect", "expected", "identical"), found


@pytest.mark.slow
def test_noise_settles_other_results_on_the_way(tmp_path):
    train(PLAIN, "a", tmp_path)
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            train(PLAIN, "a", tmp_path)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    train(replace(PLAIN, masks="input", logs="hand"), "b", tmp_path)
    assert anchorlib.compare("a", "b", store=tmp_path, noise=noise).verdict == "expected"


FAULTS = ["read", "weight", "shuffled", "moments"]


@pytest.mark.parametrize("changes", [{}, *OTHERWISE], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_beside_other_results_on_the_way_is_one(changes, fault, once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, **changes, fault=fault)))
    assert found.verdict == "unexpected", found


def test_what_a_state_carries_into_the_next_step_is_no_result_on_the_way(once):
    one = replace(PLAIN, carries=True)
    found = anchorlib.compare(once(one), once(replace(one, masks="input")))
    assert (found.verdict, found.origins[0].place.name) == ("unexpected", "norm"), found
