"""Work that is cut otherwise in low precision rounds as that does; faults of a few eps are none."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.training import perturbed
from tests.once import Once

BATCH, TIME, WIDE = 6, 9, 16


@dataclass(frozen=True)
class Training:
    """A recurrent layer by hand, an LSTM and two experts, trained with Adam.

    precision: "autocast", "bfloat16" or "float32". sequences: the LSTM is called for the "batch" or
    for each "sample". steps: the first layer is called for "all" times or for "each". experts: each
    computes "chosen" rows, or all, and the others are "masked".
    fault: what is wrong besides: the first sample's output is a "fifth" too large, the state is
    "carried" from sample to sample, the first part has no gradient ("cut"), a "row" of an expert is
    left out, or the optimizer steps "further".
    """

    precision: str = "autocast"
    sequences: str = "batch"
    steps: str = "all"
    experts: str = "chosen"
    everything: bool = True
    fault: str = ""


class Wide(nn.Module):
    """A layer whose result is float32, whatever its product is computed in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDE, width) / width**0.5)

    def forward(self, x):
        return functional.linear(x, self.weight).float()


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.enter = Wide(8)
        self.recurrent = nn.LSTM(WIDE, WIDE, batch_first=True)
        self.experts = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(2))
        self.head = nn.Linear(WIDE, 5)

    def forward(self, x):
        h = self.entered(x).to(self.head.weight.dtype)
        h = self.sequenced(h).flatten(0, 1)
        return self.head(h + self.mixed(h))

    def entered(self, x):
        if self.how.steps == "all":
            return self.enter(x)
        return torch.stack([self.enter(x[:, at]) for at in range(TIME)], 1)

    def sequenced(self, h):
        if self.how.sequences == "batch":
            return self.recurrent(h)[0]
        parts, state = [], None
        for number, sample in enumerate(h.split(1)):
            cut = self.how.fault == "cut" and not number
            told, left = self.recurrent(sample.detach() if cut else sample, state)
            state = left if self.how.fault == "carried" else None
            parts.append(told * (1.2 if self.how.fault == "fifth" and not number else 1))
        return torch.cat(parts)

    def mixed(self, h):
        first = torch.arange(len(h)) % 3 == 0
        mixed = torch.zeros_like(h)
        for mine, expert in zip((first, ~first), self.experts, strict=True):
            rows = mine.nonzero().squeeze(1)
            rows = rows[1:] if self.how.fault == "row" else rows
            if self.how.experts == "masked":
                kept = torch.zeros(len(h), 1, dtype=h.dtype).index_fill(0, rows, 1)
                mixed = mixed + (kept * expert(h)).to(h.dtype)
            else:
                mixed = mixed.index_add(0, rows, expert(h[rows]).to(h.dtype))
        return mixed


@cache
def has_low_lstm():
    """Whether oneDNN has an LSTM in low precision for this processor."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError:
        return False
    return True


@contextmanager
def lstm_of_this_processor():
    """Take torch's own LSTM where oneDNN has none."""
    torch.backends.mkldnn.enabled = has_low_lstm()
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True


def train(how: Training, name: str, store) -> None:
    with lstm_of_this_processor():
        _train(how, name, store)


def _train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    model = model.bfloat16() if how.precision == "bfloat16" else model
    rate = 1.2e-3 if how.fault == "further" else 1e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False)
    kinds = {"tensors": "*"} if how.everything else {}
    low = how.precision == "autocast"
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, **kinds)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(BATCH, TIME, 8, generator=draw)
            labels = torch.randint(0, 5, (BATCH * TIME,), generator=draw)
            with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
                logits = model(x.bfloat16() if how.precision == "bfloat16" else x)
            loss = functional.cross_entropy(logits.float(), labels)
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


EVERYTHING, SPARING = Training(), Training(everything=False)
LOW = [EVERYTHING, SPARING, Training(precision="bfloat16")]
OTHERWISE = [{"sequences": "sample"}, {"steps": "each"}, {"experts": "masked"}]
BESIDE = [
    ({"sequences": "sample"}, "fifth"),
    ({"sequences": "sample"}, "carried"),
    ({"sequences": "sample"}, "cut"),
    ({"experts": "masked"}, "row"),
]


@pytest.mark.parametrize("one", LOW, ids=["everything", "by default", "bfloat16"])
@pytest.mark.parametrize("changes", OTHERWISE, ids=str)
def test_the_same_work_in_other_calls_rounds_as_its_products_do(one, changes, once):
    for pair in ((one, replace(one, **changes)), (replace(one, **changes), one)):
        found = anchorlib.compare(*map(once, pair))
        assert found.verdict in ("suspect", "expected"), found
        assert "otherwise for the same work" in " ".join(found.notes)


@pytest.mark.parametrize("one", LOW, ids=["everything", "by default", "bfloat16"])
@pytest.mark.parametrize(("changes", "fault"), BESIDE, ids=str)
def test_a_fault_beside_other_calls_is_larger_than_that(one, changes, fault, once):
    found = anchorlib.compare(once(one), once(replace(one, **changes, fault=fault)))
    assert found.verdict == "unexpected", found
    assert "otherwise for the same work" not in " ".join(found.notes)


def test_an_update_is_measured_by_itself_and_not_by_its_parameter(once):
    other = replace(EVERYTHING, sequences="sample", fault="further")
    found = anchorlib.compare(once(EVERYTHING), once(other))
    assert found.verdict == "unexpected", found


def test_low_precision_of_one_run_alone_is_no_excuse(once):
    high = replace(EVERYTHING, precision="float32")
    found = anchorlib.compare(once(high), once(replace(EVERYTHING, sequences="sample")))
    assert "otherwise for the same work" not in " ".join(found.notes)


class Folded(nn.Module):
    """Two convolutions of width 1, each with a norm: called, or written as products."""

    def __init__(self, *, called: bool, fault: float) -> None:
        super().__init__()
        self.called, self.fault = called, fault
        self.one, self.other = nn.Conv1d(3, 16, 1), nn.Conv1d(16, 16, 1)
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(2))

    def forward(self, x):
        h = self.norms[0](self.folded(self.one, x)).relu()
        return self.norms[1](self.folded(self.other, h) + self.fault * h)

    def folded(self, conv, x):
        if self.called:
            return conv(x)
        return (x.transpose(1, 2) @ conv.weight[:, :, 0].T + conv.bias).transpose(1, 2)


def folded(store, run: str, *, tensors, called: bool = True, fault: float = 0.0) -> None:
    torch.manual_seed(0)
    model = Folded(called=called, fault=fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors=tensors, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                made = model(torch.randn(8, 3, 12, generator=draw)).float()
            anchorlib.anchor(made.square().mean() + made.mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize("tensors", ["*", None], ids=["everything", "by default"])
def test_what_lies_between_in_one_run_alone_hands_rounding_on(tmp_path, tensors):
    """The results of the convolutions are recorded in A alone, and the norms of both runs are."""
    folded(tmp_path, "a", tensors=tensors)
    folded(tmp_path, "b", tensors=tensors, called=False)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found.sentence
    folded(tmp_path, "c", tensors=tensors, called=False, fault=0.5)
    with perturbed("1:bfloat16"):
        folded(tmp_path, "n", tensors=tensors)
    for run, verdict in (("b", "expected"), ("c", "unexpected")):
        found = anchorlib.compare("a", run, store=tmp_path, noise=["n-noise1"])
        assert found.verdict == verdict, found.sentence
