"""What a collector refuses: as what kind, who is told, how often, and what follows from it."""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import grpc
import pytest

from anchor_server import Collector, MetricsPort, serve
from anchor_server import refusals as refusals_module
from anchor_server.counters import CollectorCounters
from anchor_server.refusal_counts import Caller, RefusalCounts
from anchorlib.block import block_of
from anchorlib.errors import CollectorError
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.spool import sending
from anchorlib.wire import FailureKind, PushRequest, ReaderClient, sealed
from anchorlib.wire.v1.collector_pb2 import Close
from tests.delivery.lines import eventually
from tests.server.pushing import Pusher, expected, record, stored
from tests.server.test_operations import scraped

OTHER = b"o" * 16


def full_disk(monkeypatch) -> list[bool]:
    """Until its one entry is False, every write of a row or a value finds the disk full."""
    real, full = os.pwritev, [True]

    def writing(descriptor: int, buffers, offset: int) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", writing)
    return full


def told(caplog, logger: str) -> list[str]:
    """The warnings of one logger."""
    return [
        one.getMessage()
        for one in caplog.records
        if one.name == logger and one.levelno >= logging.WARNING
    ]


def closed_run(address: str) -> None:
    with Pusher(address) as stream:
        stream.push(record(0))
        stream.send(sealed(PushRequest(close=Close())))
        assert stream.kind() is None


def refused(address: str, **hello) -> FailureKind | None:
    with Pusher(address, **hello) as stream:
        return stream.kind()


# -- kinds


def test_every_refusal_of_a_hello_says_its_kind(tmp_path):
    with serve(tmp_path) as collector, Pusher(collector.address, run="held") as holder:
        assert holder.reply().HasField("resume")
        closed_run(collector.address)
        assert refused(collector.address, writer_id=OTHER) is FailureKind.EXISTS
        assert refused(collector.address, run="held", writer_id=OTHER) is FailureKind.BUSY
        assert refused(collector.address, run="no/name") is FailureKind.INVALID
        assert refused(collector.address, protocol=1) is FailureKind.PROTOCOL


def test_every_refusal_of_a_stream_says_its_kind(tmp_path, monkeypatch):
    with serve(tmp_path, max_streams=2) as collector, ExitStack() as stack:
        first, second = (
            stack.enter_context(Pusher(collector.address, rank=rank)) for rank in range(2)
        )
        for one in (first, second):
            assert one.reply().HasField("resume")
        assert refused(collector.address, rank=2) is FailureKind.STREAMS
        first.send(b"no message")
        assert first.kind() is FailureKind.DAMAGED
        second.encoder.sequence = 7
        second.push(record(7))
        assert second.kind() is FailureKind.SEQUENCE
    # Another one: a stream that was refused gives its place back a moment after it was told.
    with serve(tmp_path) as collector, Pusher(collector.address, rank=3) as third:
        full_disk(monkeypatch)
        third.push(record(0))
        assert third.kind() is FailureKind.DISK


def test_a_call_without_the_token_says_so_and_a_reader_learns_the_kind(tmp_path):
    with serve(tmp_path, token="a-token") as collector:
        assert refused(collector.address) is FailureKind.TOKEN
        with (
            ReaderClient(f"grpc://{collector.address}") as reader,
            pytest.raises(CollectorError) as caught,
        ):
            reader.list()
        assert caught.value.kind == "token"


def test_a_stream_that_ends_because_the_collector_stops_says_so(tmp_path):
    with serve(tmp_path) as collector, Pusher(collector.address) as stream:
        assert stream.reply().HasField("resume")
        collector.stop()
        assert stream.kind() is FailureKind.STOPPING


# -- nothing follows from words


@pytest.fixture
def _wordless(monkeypatch):
    """Collectors that refuse with the kind alone."""
    real = refusals_module.refusal_of

    def silent(error: Exception) -> refusals_module.Refusal:
        return refusals_module.Refusal(real(error).kind, "")

    monkeypatch.setattr("anchor_server.refusal_counts.refusal_of", silent)


@pytest.mark.usefixtures("_wordless")
def test_an_attempt_waits_for_the_one_before_it_whatever_the_words_are(tmp_path):
    with serve(tmp_path) as collector, Pusher(collector.address, writer_id=OTHER) as holder:
        assert holder.reply().HasField("resume")
        collector._ranks._patience = 0.05
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0, resume=True))
        sink.put(block_of([record(0)]))
        with eventually() as now:
            while collector.tally.refused["busy"] < 2:
                assert now()
        assert sink._sender.refused is None
        holder.cut()
        assert sink.close(30) == 0
    assert stored(tmp_path) == expected([record(0)])


@pytest.mark.usefixtures("_wordless")
def test_a_run_that_exists_is_refused_whatever_the_words_are(tmp_path):
    with serve(tmp_path) as collector:
        closed_run(collector.address)
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        sink.put(block_of([record(0)]))
        with pytest.raises(CollectorError) as caught:
            sink.flush().wait(20)
        assert caught.value.kind == "exists"
        sink.close(20)


# -- storms


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The longest that each pause of a sender may be; none of them takes time."""
    longest: list[float] = []

    def uniform(low: float, high: float) -> float:
        longest.append(high)
        return low

    monkeypatch.setattr(sending, "random", SimpleNamespace(uniform=uniform))
    return longest


def test_a_trainer_comes_ever_more_seldom_to_a_full_disk_and_both_say_so_once(
    tmp_path, monkeypatch, caplog, pauses
):
    full = full_disk(monkeypatch)
    with serve(tmp_path) as collector:
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        sink.put(block_of([record(0), record(1)]))
        with eventually() as now:
            while len(pauses) < 12:
                assert now()
        full[0] = False
        sink.flush().wait(30)
        assert sink.close(30) == 0
    assert pauses[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    assert stored(tmp_path) == expected([record(0), record(1)])
    (at_trainer,) = told(caplog, "anchorlib")
    assert "No space left on device" in at_trainer
    (at_collector,) = told(caplog, "anchor_server")
    assert "No space left on device" in at_collector
    assert collector.tally.refused["disk"] >= 12


def test_pauses_begin_anew_once_a_record_was_committed(tmp_path, monkeypatch, pauses):
    full = full_disk(monkeypatch)
    with serve(tmp_path) as collector:
        sink = RemoteSink(f"grpc://{collector.address}", RunOptions("run1", 0))
        for step in range(2):
            full[0] = True
            pauses.clear()
            sink.put(block_of([record(step)]))
            with eventually() as now:
                while len(pauses) < 4:
                    assert now()
            assert pauses[0] == 0.2
            full[0] = False
            sink.flush().wait(30)
        assert sink.close(30) == 0
    assert stored(tmp_path) == expected([record(0), record(1)])


def caller(port: int = 1, run: str = "run1") -> Caller:
    return Caller(f"ipv4:127.0.0.1:{port}", run, 0)


def test_the_same_refusal_is_told_once_a_reason_a_machine_and_a_run(caplog):
    trouble, no = (
        RefusalCounts(CollectorCounters()),
        refusals_module.Refusal(FailureKind.DISK, "full"),
    )
    for port in range(50):
        trouble.tell(no, caller(port))
    assert told(caplog, "anchor_server") == ["refused: full"]
    trouble.tell(refusals_module.Refusal(FailureKind.BUSY, "busy"), caller())
    trouble.tell(no, caller(run="run2"))
    assert told(caplog, "anchor_server") == ["refused: full", "refused: busy", "refused: full"]


def test_what_passed_is_news_when_it_comes_again(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("anchor_server.refusal_counts.time.monotonic", lambda: clock[0])
    trouble, no = (
        RefusalCounts(CollectorCounters()),
        refusals_module.Refusal(FailureKind.DISK, "full"),
    )
    for at in (0.0, 10.0, 20.0):  # full again and again: a storm of another sort
        clock[0] = at
        trouble.tell(no, caller())
        trouble.passed(caller())
    assert told(caplog, "anchor_server") == ["refused: full"]
    clock[0] = 100.0
    trouble.passed(caller())
    trouble.tell(no, caller())
    assert told(caplog, "anchor_server") == ["refused: full"] * 2


def test_names_of_runs_do_not_flood_the_log(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("anchor_server.refusal_counts.time.monotonic", lambda: clock[0])
    tally = CollectorCounters()
    trouble, no = RefusalCounts(tally), refusals_module.Refusal(FailureKind.EXISTS, "there")
    for number in range(5000):
        trouble.tell(no, caller(run=f"run{number}"))
    assert len(told(caplog, "anchor_server")) == 60
    assert len(trouble._said) <= 1024
    clock[0] = 100.0
    trouble.tell(no, caller(run="last"))
    assert "(4940 refusals before this one were not told)" in told(caplog, "anchor_server")[-1]
    assert tally.refused == Counter(exists=5001)


def test_how_streams_end_in_good_order_is_no_warning(tmp_path, caplog):
    with serve(tmp_path) as collector, Pusher(collector.address) as first:
        assert first.reply().HasField("resume")
        with Pusher(collector.address) as second:  # of the same writer
            assert second.reply().HasField("resume")
            assert first.kind() is FailureKind.REPLACED
            with ReaderClient(f"grpc://{collector.address}") as reader:
                assert reader.get("no/such/file") is None
    assert told(caplog, "anchor_server") == []


def test_metrics_count_refusals_by_reason(tmp_path):
    collector = Collector(tmp_path, "127.0.0.1:0")
    with collector:
        port = MetricsPort("127.0.0.1:0", collector.tally, tmp_path)
        closed_run(collector.address)
        for _ in range(3):
            assert refused(collector.address, writer_id=OTHER) is FailureKind.EXISTS
        assert refused(collector.address, protocol=1) is FailureKind.PROTOCOL
        found = scraped(port.address)
        port.close()
    assert found['anchor_refusals_total{reason="exists"}'] == 3.0
    assert found['anchor_refusals_total{reason="protocol"}'] == 1.0


def test_a_client_that_knows_codes_alone_is_told_the_code(tmp_path):
    with serve(tmp_path) as collector:
        closed_run(collector.address)
        with Pusher(collector.address, writer_id=OTHER) as stream:
            assert stream.refusal()[0] == grpc.StatusCode.ALREADY_EXISTS
