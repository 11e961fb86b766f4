"""What every sink does alike: the conformance suite of embedded, remote and memory sinks.

Each kind of sink is opened by a `Kind`, which also knows how to read back what arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from anchor_server import serve
from anchorlib.block import RowBlock, block_of
from anchorlib.errors import AnchorError
from anchorlib.reading import open_run
from anchorlib.record import Edges, Gap, Parent
from anchorlib.recorder import thread_queue
from anchorlib.sinks import MemorySink, RunOptions, Sink, open_sink
from anchorlib.store import LocalLocation, RankReader
from anchorlib.store.disk.lock import is_locked, lock_path
from tests.anchorlib.store.records import filled, floats, record
from tests.queueing import put

GAP = Gap("x", "grad", "all", "because", 3, 0, 2)
EDGES = Edges("x", "train", 0, 0, (2,), parents=(Parent("w", None),), ops=("Mm",), inputs=((-1,),))


@dataclass
class Arrived:
    """What a sink has let through: records as (name, step, values), statements, the state."""

    records: list[tuple[str, int, bytes | None]]
    gaps: list[Gap]
    edges: list[Edges]
    header: dict[str, object]
    state: str


Opened = tuple[Sink, Callable[[], Arrived]]


@contextmanager
def memory(_folder: Path) -> Iterator[Opened]:
    sink = MemorySink()

    def arrived() -> Arrived:
        rows = [
            (one.name, one.step, None if one.raw is None else one.raw.tobytes())
            for one in sink.records
        ]
        state = "closed" if sink.closed else "open"
        return Arrived(rows, sink.gaps, sink.lineage, sink.entries, state)

    yield sink, arrived


def stored(folder: Path) -> Arrived:
    run = open_run("run1", folder)
    found = [one for info in run.tensors() for one in run.series(info.name, info.kind).records()]
    rows = [
        (one.name, one.step, None if one.raw is None else one.raw.tobytes())
        for one in sorted(found, key=lambda one: one.order)
    ]
    told = RankReader(LocalLocation(folder / "run1.zarr"), 0).catalogue
    header = dict(told.attempts[0].header)
    return Arrived(rows, run.gaps(), list(told.edges.values()), header, told.state)


@contextmanager
def embedded(folder: Path) -> Iterator[Opened]:
    yield open_sink(str(folder), RunOptions("run1", 0, on_full="block")), lambda: stored(folder)
    assert not is_locked(lock_path(folder, "run1", 0))  # each test closes its sink


@contextmanager
def remote(folder: Path) -> Iterator[Opened]:
    with serve(folder) as collector:
        yield (
            open_sink(f"grpc://{collector.address}", RunOptions("run1", 0, on_full="block")),
            lambda: stored(folder),
        )


@pytest.fixture(params=[memory, embedded, remote], ids=lambda kind: kind.__name__)
def opened(request, tmp_path) -> Iterator[Opened]:
    with request.param(tmp_path / "anchors") as pair:
        yield pair


def batch(first: int, last: int) -> RowBlock:
    return block_of([record("x", step, floats(step, -step)) for step in range(first, last)])


def rows(first: int, last: int) -> list[tuple[str, int, bytes]]:
    return [("x", step, floats(step, -step).tobytes()) for step in range(first, last)]


@pytest.mark.slow
def test_what_was_put_before_a_flush_is_there_after_it_in_order(opened):
    sink, arrived = opened
    for first in range(0, 300, 50):
        sink.put(batch(first, first + 50))
    sink.flush().wait(20)
    assert arrived().records == rows(0, 300)
    assert (sink.waiting, sink.dropped, sink.lost, sink.dropped_bytes) == (0, 0, 0, 0)
    sink.put(batch(300, 310))
    assert sink.close(20) == 0
    assert arrived().records == rows(0, 310)
    assert arrived().state == "closed"


def test_arrays_may_change_once_put_has_returned(opened):
    sink, arrived = opened
    raw = floats(1, 2)
    sink.put(block_of([record("x", 0, raw)]))
    raw[:] = 9
    assert sink.close(20) == 0
    assert arrived().records == [("x", 0, floats(1, 2).tobytes())]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "int64", "complex128"])
def test_storage_of_every_dtype_arrives_bit_for_bit(opened, dtype):
    sink, arrived = opened
    shapes = [(), (0, 3), (5,), (2, 3, 4), (300, 700)]
    raws = [filled(dtype, shape, seed) for seed, shape in enumerate(shapes)]
    sink.put(block_of([record("x", n, raw, dtype=dtype) for n, raw in enumerate(raws)]))
    assert sink.close(20) == 0
    assert arrived().records == [("x", n, raw.tobytes()) for n, raw in enumerate(raws)]


def test_a_record_without_values_arrives_without_them(opened):
    sink, arrived = opened
    bare = record("x", 0, floats(1), values=False)
    sink.put(block_of([bare, record("y", 1, floats(1), mode="summary")]))
    assert sink.close(20) == 0
    assert arrived().records == [("x", 0, None), ("y", 1, None)]


def test_statements_arrive_and_the_newest_total_of_a_gap_counts(opened):
    sink, arrived = opened
    sink.gap([GAP])
    sink.edges([EDGES])
    sink.header({"torch.backend": "eager", "n": 1})
    sink.gap([Gap("x", "grad", "all", "because", 7, 0, 9)])
    sink.header({"n": 2})
    sink.flush().wait(20)
    assert sink.close(20) == 0
    there = arrived()
    assert there.gaps == [Gap("x", "grad", "all", "because", 7, 0, 9)]
    assert there.edges == [EDGES]
    assert there.header == {"torch.backend": "eager", "n": 2}


def test_any_thread_may_wait_for_a_flush(opened):
    sink, arrived = opened
    sink.put(batch(0, 10))
    flushing = sink.flush()
    waiters = [threading.Thread(target=flushing.wait, args=(20,)) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()
    assert arrived().records == rows(0, 10)
    assert sink.close(20) == 0


def test_nothing_is_taken_once_a_sink_was_revoked_and_what_was_flushed_stays(opened):
    sink, arrived = opened
    sink.put(batch(0, 10))
    sink.flush().wait(20)
    threading.Thread(target=sink.revoke).start()
    while True:  # revoked by another thread, at any moment
        before = sink.lost
        try:
            sink.put(batch(10, 11))
        except AnchorError:
            break
        if sink.lost > before:
            break
    sink.close(0)
    there = [step for _, step, _ in arrived().records]
    assert there[:10] == list(range(10))
    assert set(there[10:]) <= {10}


def test_a_queue_in_front_of_any_sink_delivers_from_many_threads(opened):
    sink, arrived = opened
    queue = thread_queue(sink, limit_bytes=1 << 20, on_full="block")

    def train(k: int) -> None:
        for step in range(k * 100, k * 100 + 100):
            put(queue, record("x", step, floats(step, -step)))

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        queue.flush(20)
        thread.join()
    assert queue.close(20) == 0
    assert sorted(arrived().records) == sorted(rows(0, 400))
