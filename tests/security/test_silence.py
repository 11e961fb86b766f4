"""Streams that say nothing keep their place for a while only; trainers that rest lose nothing."""

from __future__ import annotations

import logging
import resource
import threading
from contextlib import ExitStack

import grpc
import pytest

from anchor_server import allow_files, grpc_server, serve
from anchorlib.block import block_of
from anchorlib.record import Edges, Gap
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.store import LocalLocation, RankReader
from anchorlib.wire import FailureKind, PushRequest, sealed
from anchorlib.wire.v1.collector_pb2 import Flush
from tests.delivery.lines import Proxy, eventually
from tests.server.pushing import Pusher, expected, record, stored


def hello(stream: Pusher) -> Pusher:
    assert stream.reply().HasField("resume")
    return stream


def test_a_stream_that_says_nothing_for_too_long_gives_its_place_to_another(tmp_path):
    with serve(tmp_path, max_streams=2, idle_timeout=0.3) as collector, ExitStack() as stack:
        silent = [hello(stack.enter_context(Pusher(collector.address, rank=r))) for r in range(2)]
        assert [one.kind() for one in silent] == [FailureKind.IDLE, FailureKind.IDLE]
        with eventually() as now:
            while collector.tally.streams:
                assert now()
        with Pusher(collector.address, rank=2) as late:
            late.push(record(0))
            late.acked(1)
    assert stored(tmp_path, rank=2) == expected([record(0)])


def test_a_stream_whose_client_acknowledges_no_ping_is_ended(tmp_path, monkeypatch):
    # The line swallows everything: no end of the connection is ever seen.
    soon = {"grpc.keepalive_time_ms": 300, "grpc.http2.ping_timeout_ms": 300}
    assert soon.keys() <= dict(grpc_server._OPTIONS).keys()
    options = dict(grpc_server._OPTIONS) | soon
    monkeypatch.setattr(grpc_server, "_OPTIONS", list(options.items()))
    with (
        serve(tmp_path, max_streams=1) as collector,
        Proxy(int(collector.address.rpartition(":")[2])) as line,
        Pusher(line.address, timeout=None) as gone,
    ):
        hello(gone)
        line.mode = "blackhole"
        with eventually() as now:
            while collector.tally.streams:
                assert now()
        with Pusher(collector.address, rank=1) as other:
            other.push(record(0))
            other.acked(1)
        line.cut()
    assert stored(tmp_path, rank=1) == expected([record(0)])


def test_a_client_that_takes_no_answers_is_ended(tmp_path):
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    with (
        serve(tmp_path, max_streams=1, idle_timeout=1.0) as collector,
        grpc.insecure_channel(collector.address, options=options) as channel,
    ):
        over = threading.Event()

        def flood():
            from anchorlib.wire import PROTOCOL, Hello

            yield sealed(
                PushRequest(hello=Hello(protocol=PROTOCOL, run="run1", writer_id=b"w" * 16))
            )
            number = 0
            while not over.is_set():
                number += 1
                yield sealed(PushRequest(flush=Flush(id=number)))

        call = channel.stream_stream("/anchorlib.wire.v1.Collector/Push")(flood())
        try:
            with eventually(60) as now:
                while not collector.tally.streams:
                    assert now()
                while collector.tally.streams:
                    assert now()
        finally:
            over.set()
            call.cancel()


def test_a_trainer_that_rests_loses_nothing_and_does_not_come_back_for_nothing(
    tmp_path, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    records = [record(step) for step in range(4)]
    with serve(tmp_path, idle_timeout=0.3) as collector:
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        for number, one in enumerate(records):
            sink.put(block_of([one]))
            with eventually() as now:  # it rests until its stream was ended
                while collector.tally.refused["idle"] <= number or collector.tally.streams:
                    assert now()
        sink.edges([Edges("fc1", "train", 0, 0, (1,))])
        sink.gap([Gap("fc1", "grad", "all", "line full", 3, 0, 2)])
        sink.flush().wait(20)
        # A stream that rests ends once; on a busy machine one may end as something is said on it.
        assert collector.tally.refused.keys() == {"idle"}
        assert collector.tally.refused["idle"] <= 4 + sink.retries
        assert sink.close(20) == 0
    assert stored(tmp_path) == expected(records)
    found = RankReader(LocalLocation(tmp_path / "run1.zarr"), 0)
    assert [gap.count for gap in found.gaps()] == [3]
    assert len(found.catalogue.edges) == 1
    assert found.catalogue.state == "closed"
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_trainer_that_rests_can_be_closed_and_ends_at_once(tmp_path):
    with serve(tmp_path, idle_timeout=0.2) as collector:
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        sink.put(block_of([record(0)]))
        with eventually() as now:
            while not collector.tally.refused["idle"]:
                assert now()
        assert sink.close(20) == 0
        assert not sink._thread.is_alive()
    assert RankReader(LocalLocation(tmp_path / "run1.zarr"), 0).catalogue.state == "closed"


@pytest.mark.long
def test_streams_of_256_ranks_are_open_at_once_and_each_has_its_rows(tmp_path):
    with serve(tmp_path) as collector, ExitStack() as stack:
        streams = [
            hello(stack.enter_context(Pusher(collector.address, rank=rank, timeout=120)))
            for rank in range(256)
        ]
        for stream in streams:
            stream.push(record(0))
        for stream in streams:
            stream.acked(1)
        assert collector.tally.streams == 256
    for rank in range(256):
        assert stored(tmp_path, rank=rank) == expected([record(0)])


@pytest.fixture
def _few_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_few_files")
def test_as_many_files_may_be_open_as_streams_need_or_it_is_said(caplog, monkeypatch):
    allow_files(16)
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raised > 1024
    allow_files(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == raised
    assert caplog.messages == []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    allow_files(256)
    (warning,) = caplog.messages
    assert "4096 files, which is enough for 72 ranks" in warning
