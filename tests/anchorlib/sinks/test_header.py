"""What a run's header gains on its way passes every sink, and the newest statement holds."""

from __future__ import annotations

import json

import pytest

from anchor_server import Collector
from anchorlib.recorder import thread_queue
from anchorlib.sinks import MemorySink, RunOptions, open_sink
from anchorlib.sinks.remote import RemoteSink
from anchorlib.spool.delivery import deliver
from anchorlib.store import LocalLocation, RankReader


def header(store):
    return RankReader(LocalLocation(store / "run1.zarr"), 0).catalogue.attempts[-1].header


@pytest.mark.parametrize("remote", [False, True])
def test_embedded_and_remote_sinks_add_to_the_header(tmp_path, remote):
    with Collector(tmp_path / "there", bind="127.0.0.1:0") as collector:
        store = tmp_path / ("there" if remote else "here")
        address = f"grpc://{collector.address}" if remote else str(store)
        sink = open_sink(address, RunOptions("run1", 0, {"a": 1, "b": 2}))
        for entries in ({"b": 3}, {"c": None}, {"b": 4, "c": [1]}, {"b": 3}):
            sink.header(entries)
        assert sink.close(20) == 0
    assert header(store) == {"a": 1, "b": 3, "c": [1]}
    shown = json.loads((store / "run1.zarr" / "rank0" / "zarr.json").read_text())
    assert shown["attributes"]["anchor"]["attempts"][0]["header"] == header(store)


def test_what_a_spool_keeps_of_the_header_is_delivered_in_order(tmp_path, caplog):
    sink = RemoteSink(
        "grpc://127.0.0.1:1", RunOptions("run1", 0, {"b": 0}), spool=tmp_path / "spool"
    )
    for value in (1, 2, 1):
        sink.header({"b": value})
    sink.close(0)
    deliver(sink.spool, str(tmp_path / "store"), patience=1, progress=lambda *_: None)
    assert header(tmp_path / "store") == {"b": 1}


def test_the_queue_passes_entries_on_at_a_flush_and_at_the_end():
    sink = MemorySink()
    queue = thread_queue(sink, limit_bytes=1000, on_full="block")
    queue.header({"a": 1})
    queue.flush(10)
    assert sink.entries == {"a": 1}
    queue.header({"a": 2, "b": 3})
    queue.close(10)
    assert sink.entries == {"a": 2, "b": 3}


def test_a_sink_that_takes_no_header_loses_nothing_else(caplog):
    class Refusing(MemorySink):
        def header(self, entries):
            raise OSError("no room")

    queue = thread_queue(Refusing(), limit_bytes=1000, on_full="block")
    for value in range(3):
        queue.header({"a": value})
        queue.flush(10)
    assert queue.close(10) == 0
    assert caplog.text.count("what the run's header gained was not kept: no room") == 1
