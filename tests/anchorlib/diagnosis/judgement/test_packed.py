"""Packed sequences of a batch in another order or in parts are no fault; faults in them are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import anchorlib
from tests.once import Once

LENGTHS = (5, 9, 7, 9, 3, 8)
WIDE, LABELS = 8, 4


@dataclass(frozen=True)
class Training:
    """A recurrent net of two directions over sequences of six lengths, learnt by CTC.

    turned: whether the batch is in the opposite order. parts: the backward passes a step.
    everything: what is recorded; else by default.
    fault: what is wrong besides: one row of each sequence is "short", the longest sequences are
    "sorted" to the front and stay there, or the "sign" of what the net gives.
    """

    turned: bool = False
    parts: int = 1
    everything: bool = True
    fault: str = ""


class Net(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.enter = nn.LayerNorm(WIDE)
        self.shift = nn.Parameter(torch.zeros(1))  # the softmax does not depend on it
        self.rnn = nn.LSTM(WIDE, WIDE, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDE, LABELS)

    def forward(self, x, lengths):
        given = self.enter(x).tanh()
        own = lengths - 1 if self.fault == "short" else lengths
        packed = pack_padded_sequence(given, own, batch_first=True, enforce_sorted=False)
        made, _ = self.rnn(packed)
        made, _ = pad_packed_sequence(made, batch_first=True, total_length=x.shape[1])
        if self.fault == "sorted":
            made = made[packed.sorted_indices]
        return self.head(-made if self.fault == "sign" else made) + self.shift / 16


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how.fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    lengths = torch.tensor(LENGTHS)
    inside = (torch.arange(int(lengths.max())) < lengths[:, None])[..., None]
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if how.everything else None, optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(*inside.shape[:2], WIDE, generator=draw) * inside
            batch = x, lengths, torch.randint(1, LABELS, (len(x), 2), generator=draw)
            batch = tuple(each.flip(0) for each in batch) if how.turned else batch
            optimizer.zero_grad()
            for x, own, labels in zip(*(each.chunk(how.parts) for each in batch), strict=True):
                logs = model(x, own).log_softmax(-1).transpose(0, 1)
                told = torch.full_like(own, 2)
                loss = functional.ctc_loss(logs, labels, own, told, zero_infinity=True) / how.parts
                anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


OTHERWISE = [{"turned": True}, {"parts": 2}, {"parts": 3}]
RECORDED = pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])


@pytest.mark.slow
@RECORDED
@pytest.mark.parametrize("changes", OTHERWISE, ids=str)
def test_packed_sequences_of_a_batch_that_is_dealt_otherwise_are_no_fault(
    everything, changes, once
):
    plain = Training(everything=everything)
    found = anchorlib.compare(once(plain), once(replace(plain, **changes)))
    assert found.verdict in ("suspect", "expected"), found.sentence
    assert {one.cls for one in found.origins} <= {"rounding"}
    assert any("rnn:0.0" in note and "for the same work" in note for note in found.notes)


@pytest.mark.slow
@RECORDED
@pytest.mark.parametrize("changes", OTHERWISE, ids=str)
@pytest.mark.parametrize("fault", ["short", "sorted", "sign"])
def test_a_fault_in_packed_sequences_that_are_dealt_otherwise_is_one(
    everything, changes, fault, once
):
    plain = Training(everything=everything)
    broken = replace(plain, fault=fault, **changes)
    found = anchorlib.compare(once(plain), once(broken))
    assert found.verdict == "unexpected", found.sentence
    assert not any("for the same work" in note for note in found.notes)
