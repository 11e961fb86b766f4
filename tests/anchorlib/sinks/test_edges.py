"""Lineage passes every sink, and a sink that fails loses no record for it."""

from __future__ import annotations

import pytest

from anchor_server import Collector
from anchorlib.record import Edges
from anchorlib.recorder import thread_queue
from anchorlib.sinks import MemorySink, RunOptions, open_sink
from anchorlib.store import LocalLocation, RankReader

EDGES = [Edges(f"h{n}", "train", 0, 0, (2,)) for n in range(3)]


@pytest.mark.parametrize("remote", [False, True])
def test_embedded_and_remote_sinks_store_the_same_edges(tmp_path, remote):
    with Collector(tmp_path / "there", bind="127.0.0.1:0") as collector:
        store = tmp_path / ("there" if remote else "here")
        address = f"grpc://{collector.address}" if remote else str(store)
        sink = open_sink(address, RunOptions("run1", 0))
        sink.edges(EDGES[:2])
        sink.flush().wait(20)
        sink.edges(EDGES[1:])
        assert sink.close(20) == 0
    reader = RankReader(LocalLocation(store / "run1.zarr"), 0)
    assert list(reader.catalogue.edges.values()) == EDGES


def test_the_queue_passes_edges_on_at_a_flush_and_at_the_end():
    sink = MemorySink()
    queue = thread_queue(sink, limit_bytes=1000, on_full="block")
    queue.edges(EDGES[0])
    queue.flush(10)
    assert sink.lineage == EDGES[:1]
    queue.edges(EDGES[1])
    queue.close(10)
    assert sink.lineage == EDGES[:2]


def test_a_sink_that_takes_no_edges_is_told_of_once(caplog):
    class Refusing(MemorySink):
        def edges(self, edges):
            raise OSError("no room")

    queue = thread_queue(Refusing(), limit_bytes=1000, on_full="block")
    for edges in EDGES:
        queue.edges(edges)
        queue.flush(10)
    assert queue.close(10) == 0
    assert queue.gaps == 0
    assert caplog.text.count("what values were computed from was not kept: no room") == 1
