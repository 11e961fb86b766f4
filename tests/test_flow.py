"""The whole line: a model in, the same bits out, whichever way the records went."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchor_server import Collector
from anchorlib import All, EveryN, Final, Sum, Summary
from tests.waiting import returned
from tests.warm import warm_python

pytestmark = pytest.mark.slow


@pytest.fixture
def collector(tmp_path):
    with Collector(tmp_path / "collected", bind="127.0.0.1:0") as running:
        yield running


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(40, 300)
        self.norm = nn.BatchNorm1d(300)
        self.fc2 = nn.Linear(300, 10)

    def forward(self, x):
        h = anchorlib.anchor(torch.tanh(self.norm(self.fc1(x))), "hidden", mode=[All, Sum(2)])
        anchorlib.anchor(h.bfloat16(), "half")
        anchorlib.anchor(h > 0, "mask", EveryN(2))
        return self.fc2(h)


def train(run, store, seed=0, **options):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with anchorlib.start(run, store=store, **options) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(model, tensors=["fc1"], mode=[Final("run"), Summary])
        for batch in (64, 64, 48):
            for _ in range(2):
                loss = model(torch.randn(batch, 40)).pow(2).mean()
                anchorlib.anchor(loss, "loss")
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                model(torch.randn(7, 40))
            model.train()
        session.flush()
    return session


def rows(run):
    """Everything that a run says of each of its records, but for times."""
    said = {}
    for info in run.tensors():
        series = run.series(info.name, info.kind, mode=info.mode)
        columns = series.columns
        for n, record in enumerate(series.records()):
            key = (info.name, info.kind, info.mode, int(columns["order"][n]))
            said[key] = (
                columns["digest"][n],
                record.coordinates,
                record.count,
                record.dtype,
                record.shape,
                None if record.raw is None else record.raw.tobytes(),
            )
    return said


def test_embedded_and_collected_give_identical_digests_for_every_record(tmp_path, collector):
    embedded = train("run1", tmp_path / "embedded")
    collected = train("run1", f"grpc://{collector.address}", on_full="block")
    assert embedded.counters == collected.counters
    here = rows(anchorlib.open_run("run1", tmp_path / "embedded"))
    there = rows(anchorlib.open_run(f"grpc://{collector.address}/run1"))
    on_its_disk = rows(anchorlib.open_run("run1", tmp_path / "collected"))
    assert len(here) == embedded.counters.records > 200
    assert here == there == on_its_disk


def test_the_line_loses_nothing_between_a_tensor_and_a_reader(tmp_path):
    torch.manual_seed(1)
    given = [torch.randn(3, 5) for _ in range(20)]
    with anchorlib.start("run1", store=tmp_path):
        for x in given:
            anchorlib.anchor(x, "x")
    values = anchorlib.open_run("run1", tmp_path)["x@value"].values()
    assert np.array_equal(values, torch.stack(given).numpy())


def test_an_observed_run_computes_what_the_unobserved_run_computes(tmp_path, monkeypatch):
    def weights_after(observed, store):
        monkeypatch.setenv("ANCHOR_DISABLED", "0" if observed else "1")
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        with anchorlib.start("run", store=store) as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(10):
                loss = model(torch.randn(32, 40)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        gradients = [p.grad.clone() for p in model.parameters()]
        return losses, gradients, [p.detach().clone() for p in model.parameters()]

    seen, unseen = weights_after(True, tmp_path), weights_after(False, tmp_path / "none")
    assert seen[0] == unseen[0]
    for a, b in zip((*seen[1], *seen[2]), (*unseen[1], *unseen[2]), strict=True):
        assert torch.equal(a, b)


def test_four_ranks_record_into_one_run_at_once(tmp_path):
    import subprocess

    script = (
        "import sys, torch, anchorlib\n"
        "rank = int(sys.argv[2])\n"
        "with anchorlib.start('run1', store=sys.argv[1], rank=rank) as session:\n"
        "    for n in range(30):\n"
        "        anchorlib.anchor(torch.full((100,), float(rank * 1000 + n)), 'x')\n"
        "        session.step()\n"
    )
    ranks = [
        subprocess.Popen([warm_python(), "-W", "error", "-c", script, str(tmp_path), str(rank)])
        for rank in range(4)
    ]
    assert [rank.wait(120) for rank in ranks] == [0] * 4
    run = anchorlib.open_run("run1", tmp_path)
    assert run.ranks == [0, 1, 2, 3]
    for rank in range(4):
        values = run.series("x", rank=rank).values()
        assert values[:, 0].tolist() == [rank * 1000 + n for n in range(30)]
    (info,) = run.tensors("x@value")
    assert (info.ranks, info.records) == ((0, 1, 2, 3), 120)


def test_a_collector_that_is_not_there_costs_training_nothing(tmp_path, caplog):
    with Collector(tmp_path, bind="127.0.0.1:0") as gone:
        address = gone.address
    session = anchorlib.start("run1", store=f"grpc://{address}")

    def train():
        for _ in range(20):
            anchorlib.anchor(torch.ones(10), "x")
            session.step()

    returned(train, seconds=10)  # a wait for the network would be longer
    session.close(timeout=1)
    assert caplog.text.count("no collector answers") == 1
    assert caplog.text.count("20 records of run run1 did not reach") == 1
    assert caplog.text.count("anchor push") == 1
    assert session.counters.dropped == 0  # the spool has them
    assert session.counters.records == 20
    assert session.counters.retries > 0


def test_latest_reads_back_through_the_collector(collector):
    with anchorlib.start("run1", store=f"grpc://{collector.address}") as session:
        for n in range(3):
            anchorlib.anchor(torch.full((2,), float(n)), "x")
        assert session.latest("x").tolist() == [2.0, 2.0]
