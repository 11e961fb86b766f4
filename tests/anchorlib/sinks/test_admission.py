"""One record that nothing has room for costs no other: it alone is left out, and counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorlib
from anchor_server import serve
from anchorlib.record import Coordinates, Edges, Gap, Parent, Record
from anchorlib.recorder import thread_queue
from anchorlib.sinks import MemorySink, RunOptions
from anchorlib.sinks.embedded import EmbeddedSink
from anchorlib.sinks.remote import RemoteSink
from anchorlib.store import Writer
from anchorlib.summary import summarise
from tests.queueing import put

RAW = np.arange(4, dtype="<f4")
SOUND = Record(
    "x", "grad", "all", Coordinates(0), 0, 0, "float32", RAW.shape, RAW, summarise(RAW, "float32")
)
LONE = "a\ud800"
MISFITS = {
    "a step beyond int64": {"coordinates": Coordinates(1 << 70)},
    "a pass beyond int64": {"coordinates": Coordinates(1, pass_index=1 << 63)},
    "a pass below 0": {"coordinates": Coordinates(1, pass_index=-1)},
    "a call beyond int64": {"coordinates": Coordinates(1, call=1 << 64)},
    "a call below 0": {"coordinates": Coordinates(1, call=-1)},
    "an order beyond int64": {"order": 1 << 63},
    "a count beyond uint64": {"count": 1 << 64},
    "a count below 0": {"count": -1},
    "a scale beyond float64": {"scale": 1 << 2000},
    "a name with a lone surrogate": {"name": LONE},
    "a name that is empty": {"name": ""},
    "a name that is too long": {"name": "n" * 1025},
    "a kind with a lone surrogate": {"kind": f"opt.{LONE}"},
    "a kind that is none": {"kind": "gradient"},
    "a kind that is too long": {"kind": f"opt.{'k' * 1024}"},
    "a mode with a lone surrogate": {"mode": LONE},
    "a phase with a lone surrogate": {"coordinates": Coordinates(1, phase=LONE)},
    "a phase that is too long": {"coordinates": Coordinates(1, phase="p" * 1025)},
}  # fmt: skip


def batch(misfit):
    """Three sound records around the one that is not."""
    sound = [replace(SOUND, coordinates=Coordinates(step), order=step) for step in range(3)]
    return [sound[0], replace(SOUND, **{"order": 9, **misfit}), *sound[1:]]


def drained(sink, records):
    """A queue that was given these records, and closed."""
    queue = thread_queue(sink, limit_bytes=1 << 20, on_full="block")
    for record in records:
        put(queue, record)
    queue.close(20)
    return queue


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_directory_gets_every_record_but_the_one_that_does_not_fit(misfit, tmp_path):
    queue = drained(EmbeddedSink(Writer.open(tmp_path, "run1", 0)), batch(MISFITS[misfit]))
    found = anchorlib.open_run("run1", tmp_path)
    assert found["x@grad"].columns["step"].tolist() == [0, 1, 2]
    assert (queue.lost, queue.dropped, found.state) == (1, 1, "closed")
    assert [(gap.count, gap.reason[:40] != "") for gap in found.gaps()] == [(1, True)]


@pytest.mark.slow
def test_a_collector_gets_every_record_but_those_that_do_not_fit(tmp_path):
    with serve(tmp_path, bind="127.0.0.1:0") as collector:
        address = f"grpc://{collector.address}"
        for number, misfit in enumerate(MISFITS.values()):
            run = f"run{number}"
            queue = drained(RemoteSink(address, RunOptions(run, 0)), batch(misfit))
            found = anchorlib.open_run(run, tmp_path)
            assert found["x@grad"].columns["step"].tolist() == [0, 1, 2]
            assert (queue.lost, queue.dropped, found.state) == (1, 1, "closed")
            assert [gap.count for gap in found.gaps()] == [1]


def test_a_gap_of_no_mode_is_taken_by_a_collector(tmp_path):
    with serve(tmp_path, bind="127.0.0.1:0") as collector:
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        queue = thread_queue(sink, limit_bytes=1 << 20, on_full="block")
        queue.gap(Gap("w", "opt.old_dirs", "", "optimizer state of type list", 2, 0, 1))
        put(queue, SOUND)
        queue.flush(20)
        assert queue.close(20) == 0
    found = anchorlib.open_run("run1", tmp_path)
    assert [(gap.mode, gap.count) for gap in found.gaps()] == [("", 2)]
    assert len(found["x@grad"]) == 1


def test_lineage_that_does_not_fit_costs_no_other(tmp_path):
    edges = Edges("y", "train", 0, 0, (2,), parents=(Parent("x"),))
    sink = MemorySink()
    queue = thread_queue(sink, limit_bytes=1 << 20, on_full="block")
    for one in (
        edges,
        replace(edges, name=LONE),
        replace(edges, step=1 << 70),
        replace(edges, call=1),
    ):
        queue.edges(one)
    queue.close(20)
    assert sink.lineage == [edges, replace(edges, call=1)]


def test_a_clock_that_jumps_beyond_int64_costs_the_record_it_stamped(tmp_path, monkeypatch):
    stamps = iter([1 << 70, 7, *range(100)])
    with anchorlib.start("run1", store=tmp_path) as session:
        session._queue.putter = None  # the compiled one asks the system itself
        for step in range(3):
            if step == 1:
                monkeypatch.setattr("anchorlib.recorder.ring._now", lambda: next(stamps))
            anchorlib.anchor(torch.ones(3), "x", grad=False)
            session.step()
    found = anchorlib.open_run("run1", tmp_path)
    assert found["x"].columns["step"].tolist() == [0, 2]
    assert session.counters.dropped == 1
    assert [(gap.first_step, gap.count) for gap in found.gaps()] == [(1, 1)]
