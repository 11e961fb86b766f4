"""What goes wrong around a queue and its recorder costs what it must, and nobody waits for ever."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib.capture.sessions.active import active_session
from anchorlib.errors import FlushTimeoutError, StoreError
from anchorlib.record import Edges
from anchorlib.recorder import default_place, process
from anchorlib.recorder.ring import Producer
from anchorlib.sinks import MemorySink
from tests.anchorlib.recorder.test_queue import item, join_drain, knowing, queue_to, steps
from tests.queueing import put

needs_process = pytest.mark.skipif(
    default_place() != "process", reason="this system has no recorder process"
)


class Dying(MemorySink):
    """A sink that ends the thread that calls it."""

    def put(self, block):
        raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_training_does_not_wait_for_room_that_a_dead_drain_never_makes():
    queue = queue_to(Dying(), limit_bytes=256)
    for step in range(20):
        put(queue, item(step))
    join_drain(queue)
    put(queue, item(20, nbytes=10_000))
    assert queue.stream("y", "value", "all", "train", keeps=True) >= -1
    with pytest.raises(FlushTimeoutError):
        queue.flush()
    assert queue.close(30) + queue._losses.records == 21
    assert queue.lost == 21


class Interrupted(BaseException):
    """As a Ctrl-C that a user catches."""


@pytest.mark.parametrize("placed", ["before", "after"])
def test_an_interrupted_definition_gives_no_record_another_name(monkeypatch, placed):
    sink = MemorySink()
    queue = queue_to(sink)
    publish = Producer.publish

    def interrupted(*arguments, **options):
        if placed == "after":
            publish(*arguments, **options)
        raise Interrupted

    for define in (
        lambda: queue.stream("x", "value", "all", "train", keeps=False),
        lambda: queue.layout("float64", (1,)),
    ):
        monkeypatch.setattr(Producer, "publish", interrupted)
        with pytest.raises(Interrupted):
            define()
        monkeypatch.setattr(Producer, "publish", publish)
        put(queue, replace(item(0), name=f"y{len(sink.records)}"))
        put(queue, item(1))
        queue.flush(5)
    queue.close(5)
    assert [one.name for one in sink.records] == ["y0", "x", "y2", "x"]
    assert {(one.dtype, one.shape) for one in sink.records} == {("uint8", (8,))}
    assert all(one.raw is not None for one in sink.records)


def test_an_interruption_between_ring_and_books_keeps_no_large_record_waiting(monkeypatch):
    sink = MemorySink()
    queue = knowing(queue_to(sink, limit_bytes=4096))

    def interrupted(_nbytes):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(queue.records, "placed", interrupted)
        with pytest.raises(Interrupted):
            put(queue, item(0))
    queue.flush(5)
    put(queue, item(1, nbytes=10_000))
    queue.close(5)
    assert steps(sink) == [0, 1]


def test_a_flush_that_a_close_overtakes_ends():
    gate = threading.Event()

    class Slow(MemorySink):
        def flush(self):
            gate.wait(10)
            return super().flush()

    queue = queue_to(Slow())
    put(queue, item(0))
    ended = []

    def flush():
        try:
            queue.flush()
        except FlushTimeoutError as fault:
            ended.append(fault)

    waiting = threading.Thread(target=flush)
    waiting.start()
    closing = threading.Thread(target=lambda: queue.close(5))
    closing.start()
    gate.set()
    closing.join(10)
    waiting.join(10)
    assert not waiting.is_alive()


# -- recorder processes


@pytest.fixture
def store(tmp_path):
    return tmp_path / "anchors"


def anchored(first, end, size=16):
    for n in range(first, end):
        anchorlib.anchor(torch.full((size,), float(n)), "x", grad=False)


def values(store):
    return anchorlib.open_run("run1", store)["x"].values()[:, 0].tolist()


def stopped(session):
    """The recorder of `session`, which does nothing any more."""
    pid = session._queue._worker._child.pid
    os.kill(pid, signal.SIGSTOP)
    return pid


@needs_process
@pytest.mark.slow
@pytest.mark.parametrize("refused", [OSError("no process"), BlockingIOError("no more processes")])
def test_where_no_other_recorder_can_be_started_a_thread_goes_on(
    store, monkeypatch, caplog, refused
):
    with anchorlib.start("run1", store=store, recorder="process") as session:
        anchored(0, 10)
        pid = stopped(session)
        anchored(10, 20)

        def refuse(*_, **__):
            raise refused

        monkeypatch.setattr(subprocess, "Popen", refuse)
        os.kill(pid, signal.SIGKILL)
        session.flush()
        anchored(20, 30)
    assert values(store) == [float(n) for n in range(30)]
    assert "a thread of this process goes on" in caplog.text


@needs_process
@pytest.mark.slow
def test_where_neither_process_nor_thread_can_go_on_nobody_waits(store, monkeypatch, caplog):
    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    session = anchorlib.start("run1", store=store, recorder="process", queue_bytes=4096)
    anchored(0, 10)
    session.flush()
    pid = stopped(session)
    monkeypatch.setattr(process, "_DEATHS", 1)
    monkeypatch.setattr(process, "RecorderThread", refuse)
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    anchored(10, 500)
    with pytest.raises(FlushTimeoutError):
        session.flush()
    session.close()
    assert values(store) == [float(n) for n in range(10)]
    assert (session.counters.records, session.counters.dropped) == (10, 490)
    assert "nothing more is recorded" in caplog.text


@needs_process
@pytest.mark.slow
@pytest.mark.parametrize("deaths", [2, 3])
def test_a_tensor_larger_than_the_queue_survives_its_recorders(store, deaths):
    with anchorlib.start("run1", store=store, recorder="process", queue_bytes=4096) as session:
        anchored(0, 1, size=5000)
        session.flush()
        for death in range(deaths):
            worker = session._queue._worker
            pid = stopped(session)
            if not death:
                anchored(1, 2, size=5000)
            elif death == 2:
                anchored(2, 3)  # a small one waits behind it
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while worker._instead is None and worker._child.pid == pid:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        session.flush()
        anchored(3, 5, size=5000)
    run = anchorlib.open_run("run1", store)["x"]
    found = [run.record(at).array for at in range(len(run))]
    assert [one[0] for one in found] == [0, 1, *([2] if deaths == 3 else []), 3, 4]
    assert all((one == one[0]).all() for one in found)


@needs_process
@pytest.mark.slow
def test_a_tensor_that_gets_no_memory_of_its_own_is_counted(store, monkeypatch, caplog):
    def refuse(_nbytes):
        raise OSError("no memory")

    with anchorlib.start("run1", store=store, recorder="process", queue_bytes=4096) as session:
        with monkeypatch.context() as patch:
            patch.setattr(process, "shared_memory", refuse)
            anchored(0, 1, size=5000)
        anchored(1, 2, size=5000)
    assert values(store) == [1.0]
    assert (session.counters.records, session.counters.dropped) == (1, 1)
    assert "no memory" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("place", ["thread", pytest.param("process", marks=needs_process)])
def test_a_queue_larger_than_the_memory_is_refused_in_one_line_and_the_run_stays_free(store, place):
    with pytest.raises(StoreError, match=r"no memory for a queue of .*queue_bytes"):
        anchorlib.start("run1", store=store, recorder=place, queue_bytes=1 << 60)
    with anchorlib.start("run1", store=store, recorder=place, resume=True):
        anchored(0, 1)
    assert values(store) == [0.0]


@needs_process
@pytest.mark.slow
def test_a_forked_child_that_ends_steps_flushes_and_closes_disturbs_nobody(store):
    with anchorlib.start("run1", store=store, recorder="process") as session:
        anchored(0, 2)
        held, go = threading.Event(), threading.Event()

        def hold():
            with session._queue.lock:
                held.set()
                go.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(30)
        child = os.fork()
        if child == 0:
            session.step()
            session.flush()
            session.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        go.set()
        holder.join()
        anchored(2, 4)
    assert values(store) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["thread", pytest.param("process", marks=needs_process)])
def test_threads_that_anchor_other_shapes_by_one_name_mix_nothing_up(store, place):
    def anchor(size):
        for _ in range(500):
            anchorlib.anchor(torch.full((size,), float(size)), "x", grad=False)

    with anchorlib.start("run1", store=store, recorder=place) as session:
        threads = [threading.Thread(target=anchor, args=(size,)) for size in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    run = anchorlib.open_run("run1", store)["x"]
    found = [run.record(at).array for at in range(len(run))]
    assert len(found) == 1500
    assert session.counters.dropped == 0
    assert all(np.array_equal(one, np.full(len(one), len(one), np.float32)) for one in found)


def test_a_statement_that_cannot_be_read_costs_no_record(caplog):
    sink = MemorySink()
    queue = knowing(queue_to(sink))
    queue._placer._place(b"\xff no JSON")
    put(queue, item(0))
    queue.close(5)
    assert steps(sink) == [0]
    assert "could not be read" in caplog.text


@pytest.mark.slow
def test_lineage_that_is_larger_than_the_ring_is_told_in_parts_and_flush_ends(caplog):
    sink = MemorySink()
    queue = queue_to(sink, limit_bytes=4096)
    ops = tuple(f"op{n}" for n in range(30_000))
    stated = [Edges("x", "train", 0, n, (2,), ops=ops) for n in range(20)]
    for one in [*stated, replace(stated[0], name="huge", ops=ops * 10)]:
        queue.edges(one)
    queue.flush(20)
    put(queue, item(0))
    queue.close(20)
    assert sorted(one.call for one in sink.lineage if one.name == "x") == list(range(20))
    assert steps(sink) == [0]
    assert "was left out" in caplog.text


def test_a_frozen_program_does_not_start_itself(monkeypatch):
    monkeypatch.setattr("sys.frozen", True, raising=False)
    assert default_place() == "thread"


def test_a_process_that_cannot_be_had_here_is_a_thread_though_it_was_asked_for(
    store, monkeypatch, caplog
):
    monkeypatch.delattr("os.pidfd_open", raising=False)
    with anchorlib.start("run1", store=store, recorder="process"):
        anchored(0, 3)
    assert values(store) == [0.0, 1.0, 2.0]
    assert "not on this system" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("place", ["thread", pytest.param("process", marks=needs_process)])
@pytest.mark.parametrize("closed", [True, False])
def test_a_run_is_closed_where_nobody_reads_errors(store, monkeypatch, place, closed):
    stream = io.StringIO()
    stream.close()
    session = anchorlib.start("run1", store=store, recorder=place)
    anchored(0, 3)
    monkeypatch.setattr("sys.stderr", stream if closed else None)
    session.close()
    assert anchorlib.open_run("run1", store).state == "closed"


SHADOWED = """
import sys
import torch, anchorlib
with anchorlib.start("run1", store=sys.argv[1], recorder="process") as session:
    for n in range(10):
        anchorlib.anchor(torch.full((16,), float(n)), "x", grad=False)
    session.flush()
    assert session._queue._worker._deaths == 0
"""


@needs_process
@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["-I"], pytest.param(["-O", "-W", "error"], marks=pytest.mark.long)]
)
def test_files_with_names_of_modules_do_not_keep_a_recorder_from_its_own(store, tmp_path, flags):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("grpc", "runpy", "anchorlib", "wave"):
        (here / f"{name}.py").write_text("raise SystemExit('not this one')")
    script = tmp_path / "elsewhere" / "train.py"
    script.parent.mkdir()
    script.write_text(SHADOWED)
    (script.parent / "runpy.py").write_text("raise SystemExit('not this one')")
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    command = [sys.executable, *flags, script, store]
    subprocess.run(command, check=True, cwd=here, env=environment)
    assert values(store) == [float(n) for n in range(10)]


def trained(seed):
    """The losses and last parameters of a small training."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    session = active_session()
    if session is not None:
        session.watch(model, optimizer=optimizer)
    seen = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return [*seen, *(p.detach() for p in model.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["thread", pytest.param("process", marks=needs_process)])
def test_an_observed_training_has_the_bits_of_an_unobserved_one(store, place):
    alone = trained(3)
    with anchorlib.start("run1", store=store, recorder=place):
        observed = trained(3)
    assert all(torch.equal(one, other) for one, other in zip(alone, observed, strict=True))
    other = "process" if place == "thread" and default_place() == "process" else "thread"
    with anchorlib.start("run2", store=store, recorder=other):
        trained(3)
    runs = [anchorlib.open_run(name, store) for name in ("run1", "run2")]
    listed = [[(one.name, one.kind) for one in run.tensors()] for run in runs]
    assert listed[0] == listed[1]
    assert len(listed[0]) > 8
    for name, kind in listed[0]:
        found = [run.series(name, kind).values() for run in runs]
        assert found[0].tobytes() == found[1].tobytes()
