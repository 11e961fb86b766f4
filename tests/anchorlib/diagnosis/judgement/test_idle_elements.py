"""A model's output may differ at places that no loss reads, if all else of the step is equal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import anchorlib
from tests.once import Once

LENGTHS = torch.tensor([7, 4, 6, 3])
IGNORED = 0


@dataclass(frozen=True)
class Training:
    """A tagger of padded sequences, by a recurrent layer.

    rows: how the layer is given the sequences: "padded", "packed", or "each" by itself.
    fault: what is wrong: sequences that are packed too "short", a loss that "reads" padded places,
    padded outputs that are "carried" to the next step or told as a "statistic", or an "evaluation"
    of them.
    evaluates: whether an evaluation tells the loss of places that are not padded: "", "right", or
    of outputs that are 5 % too large in "packed" runs, "wrong".
    """

    rows: str = "padded"
    fault: str = ""
    evaluates: str = ""
    cell: type[nn.RNNBase] = nn.LSTM


class Tagger(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.embedding, self.head = nn.Embedding(12, 6, padding_idx=0), nn.Linear(8, 12)
        self.rnn = how.cell(6, 8, batch_first=True)

    def forward(self, tokens):
        x, lengths = self.embedding(tokens), LENGTHS - int(self.how.fault == "short")
        if self.how.rows == "packed":
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            h = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=7)[0]
        elif self.how.rows == "each":
            own = zip(x, lengths.tolist(), strict=True)
            h = pad_sequence([self.rnn(one[None, :n])[0][0] for one, n in own], batch_first=True)
            h = functional.pad(h, (0, 0, 0, 7 - h.shape[1]))
        else:
            h = self.rnn(x)[0]
        return self.head(h)


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Tagger(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    draw = torch.Generator().manual_seed(1)
    inside, carried = torch.arange(7) < LENGTHS[:, None], torch.zeros(())
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            tokens = torch.randint(1, 12, (4, 7), generator=draw) * inside
            targets = torch.randint(1, 12, (4, 7), generator=draw) * inside
            if how.evaluates:
                with torch.no_grad():
                    made = model.eval()(tokens).transpose(1, 2)
                    made = made * (1.05 if how.evaluates == "wrong" else 1.0)
                    told = functional.cross_entropy(made, targets, ignore_index=IGNORED)
                    anchorlib.anchor(told, "eval_loss")
                    model.train()
            if how.fault == "evaluation":
                with torch.no_grad():
                    model.eval()(tokens)
                    model.train()
            optimizer.zero_grad()
            made = model(tokens).transpose(1, 2)
            ignored = -100 if how.fault == "reads" else IGNORED
            loss = functional.cross_entropy(made, targets, ignore_index=ignored)
            loss = loss * (1 + carried)
            if how.fault == "carried":
                carried = 10 * made.detach()[3, :, 6].norm()  # a padded place
            if how.fault == "statistic":
                anchorlib.anchor(made.detach().square().mean(), "statistic")
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()
ROWS = ["packed", "each"]


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("rows", ROWS)
def test_outputs_that_differ_where_no_loss_reads_them_are_no_fault(rows, cell, once):
    one = replace(PLAIN, cell=cell)
    found = anchorlib.compare(once(one), once(replace(one, rows=rows)))
    assert found.verdict in ("suspect", "expected", "identical"), found


@pytest.mark.parametrize("fault", ["short", "reads"])
@pytest.mark.parametrize("rows", ["padded", *ROWS])
def test_a_fault_at_places_that_a_loss_reads_is_one(rows, fault, once):
    if (rows, fault) == ("padded", "short"):
        rows = "packed"
    found = anchorlib.compare(once(PLAIN), once(Training(rows, fault)))
    assert found.verdict == "unexpected", found


@pytest.mark.parametrize("fault", ["carried", "statistic", "evaluation"])
@pytest.mark.parametrize("rows", ROWS)
def test_padded_places_that_something_else_reads_are_no_idle_elements(rows, fault, once):
    one = replace(PLAIN, fault=fault)
    found = anchorlib.compare(once(one), once(replace(one, rows=rows)))
    assert found.verdict == "unexpected", found


@pytest.mark.parametrize("rows", ROWS)
def test_an_evaluation_shows_by_its_own_loss_that_it_does_not_read_padded_places(rows, once):
    one = replace(PLAIN, evaluates="right")
    found = anchorlib.compare(once(one), once(replace(one, rows=rows)))
    assert found.verdict in ("suspect", "expected"), found
    found = anchorlib.compare(once(one), once(replace(one, rows=rows, evaluates="wrong")))
    assert found.verdict == "unexpected", found
