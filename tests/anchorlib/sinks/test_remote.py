"""Records on their way to a collector that is there, is not yet, is no more, or says no."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from anchor_server import Collector, serve
from anchor_server.push_service import PushService
from anchor_server.stream import RankStream
from anchorlib.block import block_of
from anchorlib.errors import CollectorError, FlushTimeoutError
from anchorlib.record import Flag, Gap
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.spool import delivery
from anchorlib.spool import earlier_attempts as earlier
from anchorlib.store import LocalLocation, RankReader, Writer
from anchorlib.wire import Failure, FailureKind
from tests.server.pushing import expected, record, stored
from tests.waiting import returned, until
from tests.writing import put


def sink_to(collector: Collector | str, **options) -> RemoteSink:
    address = collector if isinstance(collector, str) else collector.address
    return RemoteSink(f"grpc://{address}", RunOptions("run1", 0, {"seed": 1}, **options))


def reader(store: Path) -> RankReader:
    return RankReader(LocalLocation(store / "run1.zarr"), 0)


@pytest.fixture
def nowhere() -> str:
    """An address where nobody listens, and where a collector may start."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        host, port = taken.getsockname()
    return f"{host}:{port}"


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while left := set(threading.enumerate()) - before:
        if all(thread.name.startswith(("zarr_io", "asyncio_")) for thread in left):
            return  # zarr keeps these
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def warnings_in(caplog) -> list[str]:
    """What this end says; the collector of a test has a log of its own."""
    said = (one for one in caplog.records if one.name == "anchorlib")
    return [one.getMessage() for one in said if one.levelno >= logging.WARNING]


@pytest.mark.slow
def test_records_arrive_in_order_and_the_rank_is_closed(tmp_path):
    records = [record(step, size=1 + step % 40) for step in range(1000)]
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        for start in range(0, 1000, 7):
            sink.put(block_of(records[start : start + 7]))
        assert sink.close(20) == 0
    assert stored(tmp_path) == expected(records)
    assert reader(tmp_path).catalogue.state == "closed"
    assert dict(reader(tmp_path).catalogue.attempts[0].header) == {"seed": 1}


def test_a_flush_shows_everything_to_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        for step in range(3):
            sink.put(block_of([record(step)]))
            sink.flush().wait(20)
            array = zarr.open_array(tmp_path / "run1.zarr/rank0/forms/float32_4/value", mode="r")
            assert array.shape == (step + 1, 4)
        sink.close(20)


def test_the_arrays_may_be_used_again_when_put_returns(tmp_path):
    one = record(0, size=300_000)
    wanted = expected([one])
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        sink.put(block_of([one]))
        assert one.raw is not None
        one.raw[:] = -1
        sink.close(20)
    assert stored(tmp_path) == wanted


def test_gap_statements_reach_the_store(tmp_path):
    told = Gap("fc1", "grad", "all", "queue full", 3, 0, 2)
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        sink.gap([told])
        sink.close(20)
    assert list(reader(tmp_path).catalogue.gaps.values()) == [told]


@pytest.mark.slow
def test_a_collector_that_restarts_loses_and_doubles_nothing(tmp_path, nowhere):
    records = [record(step) for step in range(3000)]
    sink = sink_to(nowhere)
    for part in range(3):
        with serve(tmp_path, nowhere):
            for start in range(part * 1000, part * 1000 + 1000, 10):
                sink.put(block_of(records[start : start + 10]))
            if part < 2:
                deadline = time.monotonic() + 20
                while sink._outbox.committed < part * 1000 + 100:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
            else:
                assert sink.close(20) == 0
    assert sink.retries >= 2
    assert stored(tmp_path) == expected(records)
    assert len(reader(tmp_path).catalogue.attempts) == 1


@contextmanager
def collector_process(store: Path, bind: str):
    """A collector that can be killed; yields the process once it listens."""
    code = (
        "import sys; from anchor_server import Collector\n"
        "c = Collector(sys.argv[1], sys.argv[2]); c.start(); print('up', flush=True); c.wait()"
    )
    command = [sys.executable, "-c", code, str(store), bind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_kill_9_of_the_collector_loses_and_doubles_nothing(tmp_path, nowhere):
    records = [record(step, size=50_000 if step % 9 == 0 else 5) for step in range(400)]
    sink = sink_to(nowhere)
    puts = threading.Thread(target=lambda: [sink.put(block_of([one])) for one in records])
    with collector_process(tmp_path, nowhere) as process:
        puts.start()
        until(lambda: sink._outbox.committed >= 50)
        process.send_signal(signal.SIGKILL)
    puts.join()
    with collector_process(tmp_path, nowhere):
        assert sink.close(30) == 0
    assert stored(tmp_path) == expected(records)


@pytest.mark.slow
def test_a_collector_that_comes_late_gets_everything_and_was_missed_once(tmp_path, nowhere, caplog):
    sink = returned(lambda: sink_to(nowhere))
    records = [record(step) for step in range(100)]
    sink.put(block_of(records))
    until(lambda: sink.retries >= 3)
    with pytest.raises(FlushTimeoutError, match=r"100 records are not at grpc://.*anchor serve"):
        sink.flush().wait(0.05)
    with serve(tmp_path, nowhere):
        sink.flush().wait(20)
        assert stored(tmp_path) == expected(records)
        assert sink.close(20) == 0
    (warning,) = warnings_in(caplog)
    assert f"no collector answers at grpc://{nowhere}" in warning


@pytest.mark.slow
def test_a_collector_that_never_comes_is_counted_at_close(nowhere):
    sink = sink_to(nowhere)
    sink.put(block_of([record(step) for step in range(10)]))
    assert returned(lambda: sink.close(0.3)) == 10
    assert sink.close(0.3) == 10


@pytest.mark.slow
def test_a_run_that_exists_is_refused_once_and_what_follows_is_counted(tmp_path, caplog):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record(7)])
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        sink.put(block_of([record(0)]))
        with pytest.raises(CollectorError, match="exists already: resume it"):
            sink.flush().wait(20)
        sink.put(block_of([record(1), record(2)]))
        assert (sink.dropped, sink.close(20)) == (2, 1)
    (warning,) = warnings_in(caplog)
    assert "nothing is recorded from here on" in warning
    assert reader(tmp_path).column("step").tolist() == [7]


@pytest.mark.parametrize(("choice", "steps"), [("resume", [0, 1]), ("overwrite", [1])])
def test_a_run_that_exists_is_resumed_or_overwritten_when_asked(tmp_path, choice, steps):
    with serve(tmp_path) as collector:
        for step, options in ((0, {}), (1, {choice: True})):
            sink = sink_to(collector, **options)
            sink.put(block_of([record(step)]))
            assert sink.close(20) == 0
    assert [step for _, step, _ in stored(tmp_path)] == steps


def test_a_full_line_drops_values_then_everything_and_counts_both(tmp_path, nowhere):
    sink = sink_to(nowhere, queue_bytes=20_000)
    records = [record(step, size=1000) for step in range(100)]
    for one in records:
        sink.put(block_of([one]))
    with serve(tmp_path, nowhere):
        assert sink.close(20) == 0
    found = reader(tmp_path)
    bare = (found.column("flags") & Flag.VALUE_DROPPED) != 0
    lost = sink.dropped - bare.sum()
    assert 0 < lost < 100
    assert found.committed == 100 - lost
    assert 0 < bare.sum() < found.committed
    assert list(found.column("step")) == list(range(100 - lost))
    gaps = {gap.reason: gap for gap in found.catalogue.gaps.values()}
    assert gaps["line full: values dropped"].count == bare.sum()
    assert gaps["line full"].count == lost
    assert gaps["line full"].last_step == 99


def test_a_record_larger_than_the_memory_is_sent_when_it_is_alone(tmp_path):
    with serve(tmp_path) as collector:
        sink = sink_to(collector, queue_bytes=1000)
        sink.put(block_of([record(0, size=10_000)]))
        assert sink.close(20) == 0
    assert len(stored(tmp_path)) == 1


@pytest.mark.slow
def test_block_waits_until_there_is_room(tmp_path, nowhere):
    sink = sink_to(nowhere, on_full="block", queue_bytes=20_000)
    records = [record(step, size=1000) for step in range(30)]
    puts = threading.Thread(target=lambda: [sink.put(block_of([one])) for one in records])
    puts.start()
    puts.join(0.2)
    assert puts.is_alive()
    with serve(tmp_path, nowhere):
        puts.join(20)
        assert not puts.is_alive()
        assert sink.close(20) == 0
    assert stored(tmp_path) == expected(records)


@pytest.mark.slow
def test_a_put_that_waits_ends_when_the_sink_is_closed(nowhere):
    sink = sink_to(nowhere, on_full="block", queue_bytes=1000)
    blocks = [block_of([record(step, 1000)]) for step in range(3)]
    puts = threading.Thread(target=lambda: [sink.put(block) for block in blocks])
    puts.start()
    puts.join(0.1)
    assert sink.close(0.1) == 1
    puts.join(20)
    assert not puts.is_alive()
    assert sink.dropped == 2


# In Python 3.12 and newer, forking beside threads is warned of: which is the point here.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_touches_nothing(tmp_path):
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        sink.put(block_of([record(0)]))
        sink.flush().wait(20)
        child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(sink,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        sink.put(block_of([record(1)]))
        assert sink.close(20) == 0
    assert [step for _, step, _ in stored(tmp_path)] == [0, 1]


def _use_in_child(sink: RemoteSink) -> None:
    sink._changed.acquire()  # as if another thread had held it at the fork
    sink.put(block_of([record(7)]))
    sink.gap([])
    sink.flush().wait(None)
    os._exit(sink.close(60))


def test_several_ranks_join_one_run(tmp_path):
    records = [record(step) for step in range(100)]
    with serve(tmp_path) as collector:
        address = f"grpc://{collector.address}"
        sinks = [RemoteSink(address, RunOptions("run1", rank)) for rank in range(3)]
        for sink in sinks:
            sink.put(block_of(records))
        assert [sink.close(20) for sink in sinks] == [0, 0, 0]
    for rank in range(3):
        assert stored(tmp_path, rank=rank) == expected(records)


@pytest.mark.slow
def test_a_stream_that_is_not_answered_any_more_is_begun_anew(tmp_path, monkeypatch):
    # As where a bit flips in what the line says to itself: both ends are there, and both wait.
    monkeypatch.setattr("anchorlib.wire.clients.push.ANSWER_SECONDS", 0.4)
    real = RankStream.replies
    stuck, over = threading.Event(), threading.Event()

    def replies(self, batch):
        if not stuck.is_set():
            stuck.set()
            over.wait(30)
        yield from real(self, batch)

    monkeypatch.setattr(RankStream, "replies", replies)
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        sink.put(block_of([record(0), record(1)]))
        until(lambda: sink.retries > 0)
        over.set()
        sink.flush().wait(30)
        assert sink.close(30) == 0
    assert stored(tmp_path) == expected([record(0), record(1)])


def test_a_refusal_is_believed_when_it_comes_twice(tmp_path, monkeypatch):
    # As where a bit flips in the status of an answer.
    answers = iter([grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED])
    real = PushService.push

    def push(self, requests, context):
        for code in answers:
            context.abort(code, "a bit flipped")
        yield from real(self, requests, context)

    monkeypatch.setattr(PushService, "push", push)
    with serve(tmp_path) as collector:
        sink = sink_to(collector)
        sink.put(block_of([record(0)]))
        assert sink.close(30) == 0
        assert sink.retries == 2
    assert stored(tmp_path) == expected([record(0)])


def test_what_was_left_is_given_up_after_refusals_in_a_row_alone(nowhere, monkeypatch):
    refused = Failure(FailureKind.TOKEN, "no collector answers at there, one might think").error()
    away = Failure(FailureKind.UNREACHABLE, "the collector at there: no").error()
    script: list[CollectorError | None] = []

    class Begun:
        def __init__(self, *_: object) -> None:
            fault = script.pop(0)
            if fault is not None:
                raise fault
            self.sender = SimpleNamespace()

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(delivery, "Delivery", Begun)
    monkeypatch.setattr(earlier, "_FIRST_PAUSE", 0.0)
    sink = sink_to(nowhere)
    script[:] = [refused, refused, refused, refused, away, refused, refused, refused, refused, None]
    assert sink._earlier.begin(None, nowhere) is not None
    script[:] = [away, refused, refused, refused, refused, refused, None]
    with pytest.raises(CollectorError, match="one might think"):
        sink._earlier.begin(None, nowhere)
    assert script == [None]
    sink.close(0)
