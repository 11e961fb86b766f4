"""Values that come after their slot: whole and in order, and nobody waits for what never comes."""

from __future__ import annotations

import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import FlushTimeoutError, QueueFullError
from anchorlib.recorder import Later, Ring, thread_queue
from anchorlib.recorder.drain import Drain
from anchorlib.recorder.layout import SEQ_AT, SLOT, VOID, Word
from anchorlib.recorder.queue import RecordQueue
from anchorlib.recorder.thread import RecorderThread
from anchorlib.sinks import MemorySink
from tests.devices import StandIn
from tests.seeds import examples
from tests.waiting import until

NBYTES = 40
ROW = 64


class Values(np.ndarray):
    """An array that can be referred to weakly."""


def values(n, nbytes=NBYTES):
    """Bytes that tell `n`, and where in the array they are."""
    return ((np.arange(nbytes) * 7 + n % 256) % 256).astype(np.uint8).view(Values)


def put(queue, device, n, nbytes=NBYTES, fields=(), *, fill=True):
    """Record `n` of a device; or, without one, of this machine's memory."""
    array = values(n, nbytes)
    with queue.lock:
        stream = queue.stream("x", "value", "all", "train", keeps=True)
        layout = queue.layout("uint8", array.shape)
        source = array.ctypes.data if device is None else Later(device, array, fields)
        queue.records.put(source, nbytes, stream, layout, (n, 0, 0), n)
    if fill:
        queue.fill()


def queue_to(sink, **options):
    return thread_queue(sink, **{"limit_bytes": 1 << 20, "on_full": "block", **options})


@pytest.fixture
def device():
    return StandIn()


def steps(sink):
    return [record.coordinates.step for record in sink.records]


def are_whole(sink):
    """Whether each record has the values of its step."""
    return all(
        np.array_equal(r.raw, values(r.coordinates.step, r.raw.nbytes))
        for r in sink.records
        if r.raw is not None
    )


def test_nothing_is_taken_before_its_values_are_there(device):
    sink = MemorySink()
    queue = queue_to(sink)
    put(queue, None, 0)
    put(queue, device, 1)
    put(queue, None, 2)
    until(lambda: steps(sink) == [0])
    device.run_in_part()
    time.sleep(0.1)
    assert steps(sink) == [0]
    device.run()
    queue.flush(10)
    assert steps(sink) == [0, 1, 2]
    assert are_whole(sink)
    assert queue.close(5) == 0


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60), st.randoms())
def test_whatever_order_copies_run_in_records_keep_theirs(puts, chance):
    sink, device = MemorySink(), StandIn()
    queue = queue_to(sink, limit_bytes=1 << 12, on_full="drop")
    for n, (on_device, runs) in enumerate(puts):
        put(queue, device if on_device else None, n, 1 + n % 90)
        for _ in range(min(runs, len(device.waiting))):
            device.run(1, at=chance.randrange(len(device.waiting)))
    while device.waiting:
        device.run(1, at=chance.randrange(len(device.waiting)))
    queue.flush(10)
    assert steps(sink) == sorted(steps(sink))
    assert len(sink.records) + queue.lost == len(puts)
    assert are_whole(sink)
    assert queue.close(5) == 0


def test_the_ring_goes_round_under_copies_that_are_late(device):
    """Each slot is used again, with the last word of the record before it in it."""
    sink = MemorySink()
    ring = Ring(-1, 1 << 13, slots=16, new=True)
    worker = RecorderThread(ring, sink)
    queue = RecordQueue(ring, worker, limit_bytes=1 << 12, on_full="block")
    thread = device.run_by_itself()
    for n in range(400):
        put(queue, device if n % 3 else None, n)
    queue.flush(10)
    assert steps(sink) == list(range(400))
    assert are_whole(sink)
    assert ring[Word.PUBLISHED] > 20 * ring.slot_count
    assert queue.close(5) == 0
    device.closed = True
    thread.join(10)


def test_definitions_keep_their_place_among_copies_that_wait(device):
    sink = MemorySink()
    queue = queue_to(sink)
    for n in range(30):
        put(queue, device, n, 1 + n)  # each has a layout of its own
    device.run(7, at=3)
    device.run()
    queue.flush(10)
    assert steps(sink) == list(range(30))
    assert are_whole(sink)
    queue.close(5)


def test_what_only_the_device_knows_of_a_record_comes_with_its_values(device):
    sink = MemorySink()
    queue = queue_to(sink)
    scale = np.array(1024.0)
    put(queue, device, 0, fields=((scale, SLOT.fields["scale"][1]),))
    device.run()
    queue.flush(10)
    assert [record.scale for record in sink.records] == [1024.0]
    queue.close(5)


def test_what_is_copied_is_kept_until_then_and_no_longer(device):
    queue = queue_to(MemorySink())
    put(queue, device, 0)
    there = weakref.ref(device.waiting[0][0][0][0])
    assert there() is not None
    device.run()
    assert there() is None
    queue.close(5)


def test_copies_begin_when_nobody_holds_the_lock(device):
    queue = queue_to(MemorySink())
    device.lock = queue.lock
    put(queue, device, 0)
    device.run()
    queue.close(5)
    assert device.unlocked == [True]


def test_one_thread_copies_while_others_record(device):
    """A thread that has a place in the ring and has not filled it keeps nobody from recording."""
    sink = MemorySink()
    queue = queue_to(sink)
    put(queue, device, 0, fill=False)
    other = threading.Thread(target=put, args=(queue, None, 1))
    other.start()
    other.join(10)
    assert not other.is_alive()
    queue.fill()
    device.run()
    queue.flush(10)
    assert steps(sink) == [0, 1]
    queue.close(5)


# -- where there is no room


@pytest.mark.slow
def test_training_waits_for_the_stream_where_the_ring_is_full_of_copies(device):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=4 * ROW)
    release = threading.Timer(0.2, device.run_by_itself)
    release.start()
    for n in range(50):
        put(queue, device, n)
    queue.flush(10)
    assert steps(sink) == list(range(50))
    assert are_whole(sink)
    assert queue.records.blocked_seconds > 0
    assert queue.close(5) == 0
    device.closed = True


def test_who_waits_for_room_has_begun_the_copies_that_the_drain_waits_for(device):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=4 * ROW)
    device.run_by_itself()
    with queue.lock:  # as an observation by several modes does
        for n in range(20):
            put(queue, device, n, fill=False)
    queue.fill()
    queue.flush(10)
    assert steps(sink) == list(range(20))
    queue.close(5)
    device.closed = True


@pytest.mark.parametrize("on_full", ["drop", "raise"])
def test_copies_that_wait_fill_the_ring_as_other_records_do(device, on_full):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=160 * ROW, on_full=on_full)
    for n in range(200):
        put(queue, device, n)
    if on_full == "raise":
        with pytest.raises(QueueFullError):
            queue.records.check()
    device.run()
    queue.flush(10)
    bare = [record for record in sink.records if record.raw is None]
    assert queue.dropped == queue.lost + len(bare) > 0
    assert len(sink.records) + queue.lost == 200
    assert are_whole(sink)
    assert all(r.summary.max == max(values(r.coordinates.step)) for r in bare)
    assert queue.close(5) == 0


def test_a_record_larger_than_the_ring_comes_from_a_device_too(device):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=100)
    device.run_by_itself()
    put(queue, device, 0)
    put(queue, device, 1, 5000)
    put(queue, device, 2)
    queue.flush(10)
    assert steps(sink) == [0, 1, 2]
    assert are_whole(sink)
    assert queue.close(5) == 0
    device.closed = True


# -- what never comes


@pytest.mark.slow
def test_a_flush_waits_for_the_stream_and_says_when_its_time_is_up(device):
    sink = MemorySink()
    queue = queue_to(sink)
    put(queue, device, 0)
    with pytest.raises(FlushTimeoutError, match="1 records still wait"):
        queue.flush(0.2)
    device.run()
    queue.flush(10)
    assert steps(sink) == [0]
    queue.close(5)


@pytest.mark.slow
def test_closing_does_not_wait_longer_than_told_for_a_stream_that_hangs(device):
    sink = MemorySink()
    queue = queue_to(sink)
    queue.copy_by(lambda ring, warn: device)
    put(queue, None, 0)
    put(queue, device, 1)
    put(queue, None, 2)
    assert queue.close(0.2) == 2
    assert steps(sink) == [0]
    assert queue.lost == 2
    assert {gap.reason: gap.count for gap in sink.gaps} == {
        "not written before the session closed": 2
    }
    device.run()  # what it writes now reaches nobody, and memory that is still there


@pytest.mark.slow
def test_what_a_device_that_failed_has_not_copied_is_lost_and_counted(device):
    sink = MemorySink()
    queue = queue_to(sink)
    for n in range(4):
        put(queue, device if n in {1, 3} else None, n)
    device.run(1)
    device.is_broken = True
    queue.flush(10)
    assert steps(sink) == [0, 1, 2]
    assert (queue.lost, queue.dropped_bytes) == (1, NBYTES)
    assert queue.close(5) == 0
    (gap,) = sink.gaps
    assert (gap.reason, gap.first_step) == ("its values were not copied from the device", 3)


def test_training_does_not_wait_for_room_behind_a_device_that_failed(device):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=4 * ROW)
    for n in range(3):
        put(queue, device, n)
    device.is_broken = True
    for n in range(3, 9):
        put(queue, None, n)
    queue.flush(10)
    assert steps(sink) == list(range(3, 9))
    assert queue.lost == 3
    queue.close(5)


def test_a_copy_that_cannot_begin_costs_its_record_alone_and_is_told_once(device, caplog):
    sink = MemorySink()
    queue = queue_to(sink)
    device.fault = RuntimeError("no more streams")
    put(queue, device, 0)
    put(queue, device, 1)
    device.fault = None
    put(queue, device, 2)
    device.run()
    queue.flush(10)
    assert steps(sink) == [2]
    assert queue.lost == 2
    assert caplog.text.count("no more streams") == 1
    queue.close(5)


@pytest.mark.slow
def test_an_interrupt_while_a_copy_begins_leaves_no_slot_that_is_waited_for(device):
    sink = MemorySink()
    queue = queue_to(sink)
    device.fault = KeyboardInterrupt()
    put(queue, device, 0, fill=False)
    put(queue, device, 1, fill=False)
    with pytest.raises(KeyboardInterrupt):
        queue.fill()
    device.fault = None
    put(queue, None, 2)
    queue.flush(10)
    assert steps(sink) == [2]
    assert queue.lost == 2
    queue.close(5)


@pytest.mark.slow
def test_an_interrupt_when_a_copy_has_begun_costs_nothing(device):
    sink = MemorySink()
    queue = queue_to(sink)
    device.late_fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        put(queue, device, 0)
    device.late_fault = None
    put(queue, None, 1)
    with pytest.raises(FlushTimeoutError):
        queue.flush(0.4)
    device.run()
    queue.flush(10)
    assert steps(sink) == [0, 1]
    assert are_whole(sink)
    assert queue.lost == 0
    queue.close(5)


def test_where_values_are_dropped_a_device_that_failed_does_not_keep_the_ring_full(device):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=8 * ROW, on_full="drop")
    for n in range(20):
        put(queue, device, n)
    device.is_broken = True
    put(queue, None, 20)  # finds no room yet, and looks why
    until(lambda: queue.waiting == 0)
    put(queue, None, 21)
    queue.flush(10)
    assert steps(sink) == [21]
    queue.close(5)


def test_a_record_that_fits_no_slot_takes_no_place_for_its_values(device):
    sink = MemorySink()
    queue = queue_to(sink)
    put(queue, device, 1 << 70)
    put(queue, device, 1)
    assert len(device.waiting) == 1
    device.run()
    queue.flush(10)
    assert steps(sink) == [1]
    assert queue.lost == 1
    queue.close(5)


class Quiet:
    """A drain's host to which nothing is said."""

    def warn(self, message):
        pass

    def give_back(self, number):
        pass


def ring_with_copies(device, on_device):
    """A ring with a record for each entry of `on_device`, which no drain has looked at."""
    ring = Ring(-1, 1 << 16, slots=256, new=True)
    worker = RecorderThread(ring, MemorySink())
    queue = RecordQueue(ring, worker, limit_bytes=1 << 15, on_full="drop")
    worker._drain.closed = True
    worker.wake()
    worker._thread.join(10)
    for n, later in enumerate(on_device):
        put(queue, device if later else None, n)
    return ring


def test_a_drain_whose_trainer_died_leaves_out_what_was_not_copied_and_nothing_else(device):
    ring = ring_with_copies(device, [False, True, False, True, True, False])
    device.run(1)
    device.run_in_part()
    sink = MemorySink()
    drain = Drain(ring, sink, Quiet())
    drain.work()
    assert steps(sink) == [0, 1, 2]
    drain.forsake()
    drain.work()
    assert steps(sink) == [0, 1, 2, 5]
    assert are_whole(sink)
    assert ring[Word.LOST] == 2


def test_a_drain_looks_again_soon_where_values_are_awaited_and_not_otherwise(device):
    ring = ring_with_copies(device, [False, True])
    drain = Drain(ring, MemorySink(), Quiet())
    drain.work()
    assert drain.patience(0.05) < 0.05
    device.run()
    drain.work()
    assert drain.patience(0.05) == 0.05


def test_the_last_word_of_a_slot_is_where_the_layout_says():
    assert SLOT.fields["seq"][1] == SEQ_AT
    ring = Ring(-1, 1 << 12, slots=4, new=True)
    for number in (0, 3, 4, 1 << 40):
        ring.void(number)
        assert ring.slots["seq"][number % 4] == number + 1 | VOID
        at = ring.slot_address(number) - ring.address + SEQ_AT
        assert ring.memory[at : at + 8] == (number + 1 | VOID).to_bytes(8, "little")
