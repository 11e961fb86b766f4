"""Outputs, constants and inputs in another form are no fault where all that is learned is equal."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once

STEPS, BATCH, WIDE, CLASSES = 4, 12, 8, 5


@dataclass(frozen=True)
class Training:
    """A classifier with two heads, constants in buffers, and a second input that weighs the first.

    returns: what the model returns: "logits", "logs" of probabilities, logits "halved", "swapped",
        "stacked", or "more", which is with them a result that no loss reads.
    constants: in which encoding the buffers are: "plain", or "coded" (a mask of what is dropped,
        inverse spreads, a table in other units).
    arguments: whether the model is given the weights "last" or "first".
    evaluates: whether it is evaluated after the steps: "", or with an anchored "loss", or "silent".
    cosine: whether the loss reads normed outputs. loses: whether the loss is anchored.
    fault: what is wrong besides (see `Net` and `train`).
    """

    returns: str = "logits"
    constants: str = "plain"
    arguments: str = "last"
    evaluates: str = ""
    cosine: bool = False
    everything: bool = True
    anchored: bool = True
    fault: str = ""


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.enter = nn.Linear(WIDE, WIDE)
        self.one, self.two = nn.Linear(WIDE, CLASSES), nn.Linear(WIDE, CLASSES)
        coded, fault = how.constants == "coded", how.fault
        keep = torch.ones(WIDE, WIDE, dtype=torch.bool).tril()
        keep[0, 1] = fault == "mask"
        spread = torch.linspace(0.5, 1.5, WIDE) * (2 if fault == "spread" else 1)
        table = torch.arange(STEPS) / 10 * (2 if fault == "table" else 1)
        if fault == "entry":
            table[2] += 0.1
        self.register_buffer("mask", ~keep if coded else keep)
        self.register_buffer("spread", 1 / spread if coded else spread)
        self.register_buffer("table", table * 100 if coded else table)

    def forward(self, x, weights, step):
        how = self.how
        x, weights = (weights, x) if how.arguments == "first" else (x, weights)
        x, weights = (weights, x) if how.fault == "exchanged" else (x, weights)
        coded = how.constants == "coded"
        x = x * self.spread if coded else x / self.spread
        h = self.enter(x * (1 - weights))
        scores = (h[..., None] * h[:, None]).masked_fill(
            self.mask if coded else ~self.mask, -math.inf
        )
        h = (scores.softmax(-1) @ h[..., None])[..., 0] * (
            1 + (self.table / 100 if coded else self.table)[step]
        )
        one, two = self.one(h), self.two(h)
        if how.fault == "hotter" or (how.fault == "evaluated" and not self.training):
            one = one / 1.2
        if how.fault == "factor":
            one, two = 2 * one, 2 * two
        if how.returns == "logs":
            return one.log_softmax(-1), two.log_softmax(-1)
        if how.returns == "halved":
            return one / 2, two / 2
        if how.returns == "swapped":
            return two, one
        if how.returns == "stacked":
            return torch.stack((one, two))
        if how.returns == "more":
            return one, two, (h + 1 if how.fault == "unread" else h)
        return one, two


def loss_of(returned, labels, how):
    one, two, *_ = returned
    one, two = (two, one) if how.returns == "swapped" else (one, two)
    one, two = (2 * one, 2 * two) if how.returns == "halved" else (one, two)
    if how.cosine:
        one, two = functional.normalize(one, dim=-1), functional.normalize(two, dim=-1)
    read = functional.nll_loss if how.returns == "logs" else functional.cross_entropy
    return read(one, labels) + read(two, (labels + 2) % CLASSES)


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if how.everything else None, optimizer=optimizer)
        for step in range(STEPS):
            evaluation = how.evaluates and step == STEPS - 1
            x = torch.randn(BATCH, WIDE, generator=draw)
            weights = torch.rand(BATCH, WIDE, generator=draw)
            labels = torch.randint(0, CLASSES, (BATCH,), generator=draw)
            model.train(not evaluation)
            given = (weights, x) if how.arguments == "first" else (x, weights)
            phase = session.phase("eval") if evaluation else nullcontext()
            with phase, torch.set_grad_enabled(not evaluation):
                loss = loss_of(model(*given, step), labels, how)
                if how.evaluates != "silent" if evaluation else how.anchored:
                    anchorlib.anchor(loss, "loss")
            if not evaluation:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()
BENIGN = ("identical", "expected", "suspect")
RETURNED = ["logs", "halved", "swapped", "stacked"]


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("returns", RETURNED)
def test_an_output_in_another_form_that_the_loss_reads_as_well_is_no_fault(
    returns, everything, once
):
    one = replace(PLAIN, everything=everything)
    found = anchorlib.compare(once(one), once(replace(one, returns=returns)))
    assert found.verdict in BENIGN, found


@pytest.mark.parametrize("returns", RETURNED)
def test_a_wrong_output_in_another_form_is_a_fault(returns, once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, returns=returns, fault="hotter")))
    assert found.verdict == "unexpected", found


def test_a_factor_that_a_norm_in_the_loss_hides_is_a_fault(once):
    one = replace(PLAIN, cosine=True)
    assert anchorlib.compare(once(one), once(replace(one, returns="halved"))).verdict in BENIGN
    found = anchorlib.compare(once(one), once(replace(one, fault="factor")))
    assert found.verdict == "unexpected", found


def test_an_output_without_a_recorded_loss_behind_it_is_a_fault(once):
    one = replace(PLAIN, anchored=False)
    found = anchorlib.compare(once(one), once(replace(one, returns="logs")))
    assert found.verdict == "unexpected", found


def test_an_output_that_no_loss_reads_is_a_fault(once):
    one = replace(PLAIN, returns="more")
    found = anchorlib.compare(once(one), once(replace(one, fault="unread")))
    assert found.verdict == "unexpected", found


def test_an_evaluation_shows_by_its_own_loss_that_its_output_is_used_alike(once):
    one = replace(PLAIN, evaluates="loss")
    found = anchorlib.compare(once(one), once(replace(one, returns="logs")))
    assert found.verdict in BENIGN, found


@pytest.mark.parametrize("evaluates", ["loss", "silent"])
@pytest.mark.parametrize("returns", ["logits", "swapped", "logs"])
def test_a_wrong_output_of_an_evaluation_is_a_fault_beside_another_form(returns, evaluates, once):
    one = replace(PLAIN, evaluates=evaluates)
    found = anchorlib.compare(once(one), once(replace(one, returns=returns, fault="evaluated")))
    assert found.verdict == "unexpected", found


def test_constants_in_another_encoding_are_no_fault(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, constants="coded")))
    assert found.verdict in BENIGN, found


@pytest.mark.parametrize("constants", ["plain", "coded"])
@pytest.mark.parametrize("fault", ["mask", "spread", "table", "entry"])
def test_a_wrong_constant_is_a_fault_in_each_encoding(fault, constants, once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, constants=constants, fault=fault)))
    assert found.verdict == "unexpected", found


def test_arguments_in_another_order_are_no_fault_where_the_model_takes_them_so(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, arguments="first")))
    assert found.verdict in BENIGN, found
    found = anchorlib.compare(
        once(PLAIN), once(replace(PLAIN, arguments="first", fault="exchanged"))
    )
    assert found.verdict == "unexpected", found
