"""The queue: order kept, bytes bounded, and nothing that a sink does reaches training."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from anchorlib.errors import FlushTimeoutError, QueueFullError
from anchorlib.record import Coordinates, Record
from anchorlib.sinks import MemorySink, RecordQueue


class Item:
    """A deferred record of `nbytes` zeros."""

    kind = "value"
    mode = "all"

    def __init__(self, step, nbytes=8, fault=None):
        self.name = "x"
        self.step = step
        self.nbytes = nbytes
        self.fault = fault
        self.released = 0

    def storage(self):
        if self.fault is not None:
            raise self.fault
        return np.zeros(self.nbytes, np.uint8), "uint8"

    def record(self, summary=None):
        if self.fault is not None:
            raise self.fault
        raw = np.zeros(self.nbytes, np.uint8)
        at = Coordinates(self.step)
        return Record("x", "value", "all", at, self.step, 0, "uint8", raw.shape, raw, summary)

    bare = lost = False

    def summary_alone(self):
        return Bare(self)

    def release(self):
        self.released += 1


class Bare(Item):
    """The same without its values."""

    bare = lost = True

    def __init__(self, item):
        super().__init__(item.step, 0)

    def storage(self):
        return None

    def record(self, _summary=None):
        return replace(super().record(), raw=None)


class GatedSink(MemorySink):
    """A sink that waits at a gate, and fails while `fault` is set."""

    def __init__(self, *, open_gate=True):
        super().__init__()
        self.gate = threading.Event()
        self.fault = None
        if open_gate:
            self.gate.set()

    def put(self, records):
        self.gate.wait(10)
        if self.fault is not None:
            raise self.fault
        super().put(records)


def queue_to(sink, **options):
    return RecordQueue(sink, **{"limit_bytes": 1 << 20, "on_full": "block", **options})


def steps(sink):
    return [record.coordinates.step for record in sink.records]


def test_everything_arrives_in_order_and_is_released_once():
    sink = MemorySink()
    queue = queue_to(sink)
    items = [Item(n) for n in range(5000)]
    for item in items:
        queue.put(item)
    queue.flush(10)
    assert steps(sink) == list(range(5000))
    assert {item.released for item in items} == {1}
    assert queue.close(5) == 0
    assert sink.closed
    assert queue.records == 5000
    assert queue.bytes == 40000


def test_small_records_do_not_wait_for_company_long():
    sink = MemorySink()
    queue = queue_to(sink)
    queue.put(Item(0))
    deadline = time.monotonic() + 5
    while not sink.records and time.monotonic() < deadline:
        time.sleep(0.005)
    assert steps(sink) == [0]
    queue.close(5)


def test_blocking_holds_training_until_there_is_room_and_loses_nothing(caplog):
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=100)
    threading.Timer(0.2, sink.gate.set).start()
    for n in range(20):
        queue.put(Item(n, 40))
    assert queue.close(10) == 0
    assert steps(sink) == list(range(20))
    assert queue.blocked_seconds > 0.1
    assert caplog.text.count("training waits") == 1


def test_a_record_larger_than_the_limit_is_still_taken():
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=100, on_full="drop")
    queue.put(Item(0, 1000))
    queue.flush(10)
    assert steps(sink) == [0]
    queue.close(5)


def test_dropping_never_waits_keeps_summaries_and_counts_the_values():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=100, on_full="drop")
    items = [Item(n, 40) for n in range(20)]
    for item in items:
        queue.put(item)
    sink.gate.set()
    queue.close(10)
    assert steps(sink) == list(range(20))
    assert queue.dropped == sum(record.raw is None for record in sink.records) >= 17
    (gap,) = sink.gaps
    assert (gap.reason, gap.count) == ("queue full: values dropped", queue.dropped)
    assert (gap.first_step, gap.last_step) == (20 - queue.dropped, 19)
    assert {item.released for item in items} == {1}


def test_where_summaries_find_no_room_either_records_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr("anchorlib.sinks.queue._SUMMARIES", 3)
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=40, on_full="drop")
    for n in range(20):
        queue.put(Item(n, 40))
    sink.gate.set()
    queue.close(10)
    assert len(sink.records) < 10
    assert queue.dropped >= 19
    counted = {gap.reason: gap.count for gap in sink.gaps}
    assert len(sink.records) + counted["queue full"] == 20
    assert sum(counted.values()) == queue.dropped


def test_raising_tells_at_the_next_check_once():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=100, on_full="raise")
    for n in range(5):
        queue.put(Item(n, 90))
    with pytest.raises(QueueFullError, match="x@value"):
        queue.check()
    queue.check()
    sink.gate.set()
    queue.close(10)


def test_a_failing_sink_costs_the_batch_and_is_logged_once(caplog):
    sink = GatedSink()
    sink.fault = OSError("disk on fire")
    queue = queue_to(sink)
    for n in range(10):
        queue.put(Item(n))
        queue._drained(n + 1, 5)
    sink.fault = None
    queue.put(Item(10))
    queue.flush(5)
    assert steps(sink) == [10]
    assert queue.dropped == 10
    assert caplog.text.count("disk on fire") == 1
    assert [(g.reason, g.count) for g in sink.gaps] == [("OSError: disk on fire", 10)]
    queue.close(5)


def test_one_record_that_cannot_be_made_does_not_cost_the_others():
    sink = MemorySink()
    queue = queue_to(sink)
    for n in range(3):
        queue.put(Item(n, fault=ValueError("bad") if n == 1 else None))
    queue.close(5)
    assert steps(sink) == [0, 2]
    assert queue.dropped == 1


def test_a_flush_that_takes_too_long_says_how_many_wait():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink)
    queue.put(Item(0))
    with pytest.raises(FlushTimeoutError, match="1 records") as caught:
        queue.flush(0.05)
    assert isinstance(caught.value, TimeoutError)
    sink.gate.set()
    queue.flush(5)
    queue.close(5)


def test_closing_in_time_counts_what_could_not_be_delivered():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink)
    for n in range(3):
        queue.put(Item(n))
    assert queue.close(0.1) == 3
    sink.gate.set()
    queue._thread.join(5)


def test_records_from_several_threads_all_arrive():
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=4000)
    threads = [
        threading.Thread(target=lambda k=k: [queue.put(Item(k * 1000 + n)) for n in range(500)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close(10)
    seen = steps(sink)
    assert len(seen) == 2000
    for k in range(4):
        mine = [s for s in seen if s // 1000 == k]
        assert mine == sorted(mine)
