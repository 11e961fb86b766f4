"""Rows of logits that one run alone computes, and that no loss reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once

PAD = 0


@dataclass(frozen=True)
class Training:
    """A model of tokens. logits: of "all" places, of "real" ones, or of those that are "told".

    misses: how many of the chosen places are left out. scale: of the logits. nothing: whether a
    layer is called without any row, too, as an expert that no token chose.
    """

    logits: str = "all"
    misses: int = 0
    scale: float = 1.0
    nothing: bool = False


class Net(nn.Module):
    """An embedding, a layer, and logits of some places."""

    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.embed, self.layer, self.head = (
            nn.Embedding(20, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 20),
        )

    def forward(self, tokens):
        h = torch.tanh(self.layer(self.embed(tokens)))
        if self.how.nothing:
            h = h + self.layer(h[:0]).sum()
        h = h if self.how.logits == "all" else h[places(self.how, tokens)]
        return self.head(h) * self.how.scale


def targets_of(tokens):
    return torch.cat([tokens[:, 1:], torch.full((len(tokens), 1), PAD)], 1)


def places(how: Training, tokens):
    """The places whose logits are told."""
    chosen = (tokens if how.logits == "real" else targets_of(tokens)) != PAD
    for place in chosen.nonzero()[: how.misses].tolist():
        chosen[tuple(place)] = False
    return chosen


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    net = Net(how)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(net, tensors="*", optimizer=optimizer)
        for _ in range(3):
            tokens = torch.randint(1, 20, (6, 9), generator=draw)
            lengths = torch.randint(5, 10, (6, 1), generator=draw)
            tokens[torch.arange(9) >= lengths] = PAD
            targets, logits = targets_of(tokens), net(tokens)
            own = targets if how.logits == "all" else targets[places(how, tokens)]
            loss = functional.cross_entropy(
                logits.reshape(-1, 20), own.reshape(-1), ignore_index=PAD
            )
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("nothing", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("logits", ["real", "told"])
def test_logits_that_no_loss_reads_may_be_left_out(logits, turned, nothing, once):
    runs = once(Training(nothing=nothing)), once(Training(logits, nothing=nothing))
    found = anchorlib.compare(*(reversed(runs) if turned else runs))
    assert found.verdict in ("identical", "expected", "suspect"), found
    assert {origin.cls for origin in found.origins} <= {"rounding"}, found


@pytest.mark.parametrize("change", [{"misses": 1}, {"scale": 1.01}])
@pytest.mark.parametrize("logits", ["real", "told"])
def test_a_place_that_is_missed_or_logits_of_another_size_are_a_fault(logits, change, once):
    found = anchorlib.compare(once(Training()), once(replace(Training(logits), **change)))
    assert found.verdict == "unexpected", found
