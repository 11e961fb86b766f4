"""The queue: order kept, bytes bounded, and nothing that a sink does reaches training."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from anchorlib.errors import FlushTimeoutError, QueueFullError
from anchorlib.record import Coordinates, Edges, Gap, Record
from anchorlib.recorder import thread_queue
from anchorlib.sinks import MemorySink
from anchorlib.summary import figures_of
from tests.queueing import put

ROW = 64  # bytes that a small record takes in the ring


def item(step, nbytes=8):
    """A record of `nbytes` zeros."""
    raw = np.zeros(nbytes, np.uint8)
    return Record("x", "value", "all", Coordinates(step), step, 0, "uint8", raw.shape, raw, None)


class GatedSink(MemorySink):
    """A sink that waits at a gate, and fails while `fault` is set."""

    def __init__(self, *, open_gate=True):
        super().__init__()
        self.gate, self.taken = threading.Event(), threading.Event()
        self.fault = None
        if open_gate:
            self.gate.set()

    def put(self, block):
        self.taken.set()
        self.gate.wait(10)
        if self.fault is not None:
            raise self.fault
        super().put(block)


def queue_to(sink, **options):
    return thread_queue(sink, **{"limit_bytes": 1 << 20, "on_full": "block", **options})


def knowing(queue):
    """`queue`, after the drain has read the definitions of small items, which need room too."""
    queue.stream("x", "value", "all", "train", keeps=True)
    queue.layout("uint8", (40,))
    queue.flush(10)
    return queue


def join_drain(queue):
    """Wait for the drain thread of `queue`."""
    queue._worker._thread.join(10)


def steps(sink):
    return [record.coordinates.step for record in sink.records]


@pytest.mark.slow
def test_everything_arrives_in_order():
    sink = MemorySink()
    queue = queue_to(sink)
    for n in range(5000):
        put(queue, item(n))
    queue.flush(10)
    assert steps(sink) == list(range(5000))
    assert queue.close(5) == 0
    assert sink.closed
    assert (queue.lost, queue.dropped, queue.dropped_bytes) == (0, 0, 0)


def test_small_records_do_not_wait_for_company_long():
    sink = MemorySink()
    queue = queue_to(sink)
    put(queue, item(0))
    deadline = time.monotonic() + 5
    while not sink.records and time.monotonic() < deadline:
        time.sleep(0.005)
    assert steps(sink) == [0]
    queue.close(5)


@pytest.mark.slow
def test_blocking_holds_training_until_there_is_room_and_loses_nothing(caplog):
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=2 * ROW)
    threading.Timer(0.2, sink.gate.set).start()
    for n in range(20):
        put(queue, item(n, 40))
    assert queue.close(10) == 0
    assert steps(sink) == list(range(20))
    assert queue.records.blocked_seconds > 0.1
    assert caplog.text.count("training waits") == 1


def test_a_record_larger_than_the_limit_is_still_taken():
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=100, on_full="drop")
    put(queue, item(0, 1000))
    queue.flush(10)
    assert steps(sink) == [0]
    queue.close(5)


def test_dropping_never_waits_keeps_summaries_and_counts_the_values():
    sink = GatedSink(open_gate=False)
    queue = knowing(queue_to(sink, limit_bytes=160 * ROW, on_full="drop"))
    for n in range(150):
        put(queue, item(n, 40))
    sink.gate.set()
    queue.close(10)
    assert steps(sink) == list(range(150))
    assert queue.dropped == sum(record.raw is None for record in sink.records) == 10
    assert (queue.lost, queue.dropped_bytes) == (0, 400)
    (gap,) = sink.gaps
    assert (gap.reason, gap.count) == ("queue full: values dropped", queue.dropped)
    assert (gap.first_step, gap.last_step) == (140, 149)


def test_where_summaries_find_no_room_either_records_are_left_out_and_counted():
    sink = GatedSink(open_gate=False)
    queue = knowing(queue_to(sink, limit_bytes=8 * ROW, on_full="drop"))
    for n in range(20):
        put(queue, item(n, 40))
    sink.gate.set()
    queue.close(10)
    assert steps(sink) == list(range(8))  # seven with values, one summary in the reserved eighth
    assert (queue.lost, queue.dropped) == (12, 13)
    assert {gap.reason: gap.count for gap in sink.gaps} == {
        "queue full": 12,
        "queue full: values dropped": 1,
    }


def test_values_that_find_no_room_are_summarised_on_the_drain_thread(monkeypatch):
    made_by = set()

    def noted(*values):
        made_by.add(threading.current_thread().name)
        return figures_of(*values)

    monkeypatch.setattr("anchorlib.recorder.slot_records.figures_of", noted)
    sink = GatedSink(open_gate=False)
    queue = knowing(queue_to(sink, limit_bytes=8 * ROW, on_full="drop"))
    for n in range(20):
        put(queue, item(n, 40))
    sink.gate.set()
    queue.close(10)
    assert made_by == {"anchorlib-drain"}


def test_raising_tells_at_the_next_check_once():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=2 * ROW, on_full="raise")
    for n in range(5):
        put(queue, item(n, 90))
    with pytest.raises(QueueFullError, match="x@value"):
        queue.records.check()
    queue.records.check()
    sink.gate.set()
    queue.close(10)


def test_a_failing_sink_costs_the_batch_and_is_logged_once(caplog):
    sink = GatedSink()
    sink.fault = OSError("disk on fire")
    queue = queue_to(sink)
    for n in range(10):
        put(queue, item(n))
        queue.flush(5)
    sink.fault = None
    put(queue, item(10))
    queue.flush(5)
    assert steps(sink) == [10]
    assert (queue.dropped, queue.lost, queue.dropped_bytes) == (10, 10, 80)
    assert caplog.text.count("disk on fire") == 1
    assert [(g.reason, g.count) for g in sink.gaps] == [("OSError: disk on fire", 10)]
    queue.close(5)


def test_one_record_that_cannot_be_made_does_not_cost_the_others(monkeypatch):
    def picky(values, *rest):
        if any(len(value) == 13 for value in values):
            raise ValueError("bad")
        return figures_of(values, *rest)

    monkeypatch.setattr("anchorlib.recorder.slot_records.figures_of", picky)
    sink = MemorySink()
    queue = queue_to(sink)
    for n in range(3):
        put(queue, item(n, 13 if n == 1 else 8))
    queue.close(5)
    assert steps(sink) == [0, 2]
    assert queue.dropped == 1


def test_a_flush_that_takes_too_long_says_how_many_wait():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink)
    put(queue, item(0))
    with pytest.raises(FlushTimeoutError, match=r"1 records still wait after 0.05 s") as caught:
        queue.flush(0.05)
    assert isinstance(caught.value, TimeoutError)
    sink.gate.set()
    queue.flush(5)
    queue.close(5)


class RecordingSink(MemorySink):
    """A sink that notes which thread called it, and that takes its time."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds
        self.calls = []

    def _note(self, what):
        self.calls.append((what, threading.current_thread().name))
        time.sleep(self.seconds)

    def put(self, block):
        self._note("put")
        super().put(block)

    def gap(self, gaps):
        self._note("gap")
        super().gap(gaps)

    def edges(self, edges):
        self._note("edges")
        super().edges(edges)

    def header(self, entries):
        self._note("header")
        super().header(entries)

    def flush(self):
        self._note("flush")
        return super().flush()

    def close(self, timeout):
        self._note("close")
        return super().close(timeout)


@pytest.mark.slow
def test_everything_that_changes_a_sink_is_called_by_the_drain_thread_alone():
    sink = RecordingSink(seconds=0.002)
    queue = queue_to(sink)

    def train(k):
        for n in range(40):
            put(queue, item(n))
            queue.gap(Gap("x", "grad", "all", f"reason {k}", 1, n, n))
            queue.edges(Edges("x", "train", 0, n, (2,)))
            queue.header({f"{k}": n})
            if n % 10 == 0:
                queue.flush(10)

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close(10)
    assert {name for _, name in sink.calls} == {"anchorlib-drain"}
    assert {what for what, _ in sink.calls} == {"put", "gap", "edges", "header", "flush", "close"}
    assert sink.calls[-1][0] == "close"
    assert len(sink.records) == len(sink.lineage) == 160
    assert {(gap.reason, gap.count) for gap in sink.gaps} == {(f"reason {k}", 40) for k in range(4)}
    assert sink.entries == {f"{k}": 39 for k in range(4)}


@pytest.mark.slow
def test_a_close_that_runs_out_of_time_writes_nothing_more_and_counts_what_waited():
    sink = RecordingSink(seconds=0.3)
    queue = queue_to(sink)
    for n in range(10_000):
        put(queue, item(n, 8))
    undelivered = queue.close(0.05)
    there, calls = len(sink.records), len(sink.calls)
    assert undelivered == 10_000 - there > 0
    assert undelivered == queue.lost
    assert [gap.count for gap in sink.gaps] == [undelivered]
    assert sink.closed
    join_drain(queue)  # nobody else writes
    assert not queue._worker._thread.is_alive()
    assert (len(sink.records), len(sink.calls)) == (there, calls)


def test_a_sink_that_hangs_is_revoked_when_a_close_has_waited_long_enough(monkeypatch):
    monkeypatch.setattr("anchorlib.recorder.queue._BATCH_SECONDS", 0.05)

    class Hanging(GatedSink):
        def revoke(self):
            super().revoke()
            self.gate.set()

    sink = Hanging(open_gate=False)
    queue = queue_to(sink)
    for n in range(3):
        put(queue, item(n))
    assert queue.close(0.05) == 3
    assert (sink.records, queue.lost, sink.closed) == ([], 3, True)


def test_a_sink_that_never_answers_costs_what_waits_and_ends_every_wait(monkeypatch, caplog):
    monkeypatch.setattr("anchorlib.recorder.queue._BATCH_SECONDS", 0.05)
    monkeypatch.setattr("anchorlib.recorder.queue._OPERATION_SECONDS", 0.05)
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink)
    put(queue, item(0, 200))
    flushed = []

    def flush():
        try:
            queue.flush()
        except FlushTimeoutError as late:
            flushed.append(late)

    waiting = threading.Thread(target=flush)
    waiting.start()
    sink.taken.wait(10)
    put(queue, item(1))
    put(queue, item(2))
    assert queue.close(0.05) == 3
    waiting.join(5)
    assert not waiting.is_alive()
    assert "stays locked" in caplog.text
    sink.gate.set()
    join_drain(queue)


def test_what_is_put_after_a_close_is_counted_as_lost():
    sink = MemorySink()
    queue = queue_to(sink)
    put(queue, item(0))
    queue.close(5)
    put(queue, item(1))
    queue.flush(1)
    assert steps(sink) == [0]
    assert queue.lost == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_drain_thread_that_dies_leaves_nobody_waiting():
    class Dying(MemorySink):
        def put(self, block):
            raise SystemExit

    queue = queue_to(Dying())
    put(queue, item(0))
    join_drain(queue)
    put(queue, item(1))
    with pytest.raises(FlushTimeoutError):
        queue.flush()
    assert queue.close(5) == 2
    assert queue.close(5) == 2
    assert queue.lost == 2


def test_gaps_that_a_sink_did_not_take_are_stated_again():
    class Refusing(MemorySink):
        refusals = 1

        def gap(self, gaps):
            if self.refusals:
                self.refusals -= 1
                raise OSError("not now")
            super().gap(gaps)

    sink = Refusing()
    queue = queue_to(sink)
    queue.gap(Gap("x", "grad", "all", "why", 2, 0, 1))
    queue.flush(5)
    queue.flush(5)
    queue.close(5)
    assert sink.gaps == [Gap("x", "grad", "all", "why", 2, 0, 1)]
    assert queue.gaps == 1


@pytest.mark.slow
def test_records_from_several_threads_all_arrive():
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=4000)
    threads = [
        threading.Thread(target=lambda k=k: [put(queue, item(k * 1000 + n)) for n in range(500)])
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


def test_what_a_signal_handler_puts_inside_a_put_is_counted_and_harms_nothing(monkeypatch):
    sink = MemorySink()
    queue = knowing(queue_to(sink))
    copy = queue.records._producer.copy

    def interrupted(*place):
        monkeypatch.setattr(queue.records._producer, "copy", copy)
        put(queue, item(7))  # as a handler does that runs between two lines of the put
        copy(*place)

    monkeypatch.setattr(queue.records._producer, "copy", interrupted)
    for step in (1, 2):
        put(queue, item(step))
    assert queue.close(5) == 0
    assert steps(sink) == [1, 2]
    assert queue.lost == 1
    (gap,) = sink.gaps
    assert (gap.name, gap.first_step, gap.count) == ("x", 7, 1)


def test_a_session_closes_while_another_thread_waits_for_a_flush():
    sink = GatedSink(open_gate=False)
    queue = queue_to(sink, limit_bytes=2 * ROW, on_full="block")
    for step in range(2):
        put(queue, item(step))
    assert sink.taken.wait(10)
    n = 0
    while not queue._placer._unplaced:  # statements fill the room that is left
        n += 1
        queue.header({f"key{n}": "x" * 5000})
        with queue.lock:
            queue._placer.place_statements(0.0)

    def flush():
        with suppress(FlushTimeoutError):  # the session closed before it was done
            queue.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    closing = threading.Thread(target=queue.close, args=(0.1,))
    closing.start()
    until = time.monotonic() + 10
    while not queue.records.closing and time.monotonic() < until:
        time.sleep(0.01)
    assert queue.records.closing  # though the flush still waits
    sink.gate.set()
    for thread in (flushing, closing):
        thread.join(30)
        assert not thread.is_alive()
