"""Many threads, one sink: what a run is worth when anchors, flushes and closes meet."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

import anchorlib
from anchorlib.store.disk.lock import is_locked, lock_path
from anchorlib.summary import figures_of
from tests.cli.made import anchor
from tests.contract.test_recording import unused_port


@pytest.fixture(autouse=True)
def recorder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions record where they do without a word: in a process of their own."""
    monkeypatch.delenv("ANCHOR_RECORDER", raising=False)


def files_below(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Size, time and bytes of every file."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def verified(store: Path) -> int:
    return anchor("verify", "run1", "--store", str(store)).code


@pytest.mark.slow
def test_threads_that_anchor_while_another_flushes_leave_a_run_that_is_sound(store):
    with anchorlib.start("run1", store=store) as session:
        over = threading.Event()

        def anchor_many(k: int) -> None:
            for n in range(400):
                anchorlib.anchor(torch.full((8,), float(1000 * k + n)), f"x{k}")

        def flush_often() -> None:
            while not over.is_set():
                session.flush(30)

        flushing = threading.Thread(target=flush_often)
        anchoring = [threading.Thread(target=anchor_many, args=(k,)) for k in range(4)]
        for thread in (flushing, *anchoring):
            thread.start()
        for thread in anchoring:
            thread.join()
        over.set()
        flushing.join()
    assert verified(store) == 0
    run = anchorlib.open_run("run1", store)
    for k in range(4):
        series = run[f"x{k}"]
        assert series.values()[:, 0].tolist() == [1000.0 * k + n for n in range(400)]
        assert series.columns["call"].tolist() == list(range(400))


def slow_disk(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every write to a chunk file takes so long."""
    write = os.pwritev

    def slowly(*arguments):
        time.sleep(seconds)
        return write(*arguments)

    monkeypatch.setattr(os, "pwritev", slowly)


@pytest.mark.slow
def test_a_store_that_cannot_drain_in_time_leaves_a_sound_unlocked_run_that_no_longer_changes(
    store, monkeypatch, caplog
):
    session = anchorlib.start("run1", store=store, recorder="thread")
    anchorlib.anchor(torch.ones(8), "x")
    session.flush()
    slow_disk(monkeypatch, 0.1)
    for n in range(3000):
        anchorlib.anchor(torch.full((8,), float(n)), f"x{n % 50}")
    session.close(timeout=0.3)
    before = files_below(store)
    assert not is_locked(lock_path(store, "run1", 0))
    assert session.counters.dropped > 0
    (said,) = [line for line in caplog.messages if "run1" in line or "session" in line]
    assert f"{session.counters.dropped} records of run run1 did not reach" in said
    monkeypatch.undo()
    time.sleep(0.3)
    assert files_below(store) == before
    assert verified(store) in (0, 3)  # 3: what was not written in time is a gap
    run = anchorlib.open_run("run1", store)
    assert session.counters.records == sum(info.records for info in run.tensors()) < 3001
    with anchorlib.start("run1", store=store, resume=True):
        anchorlib.anchor(torch.ones(8), "x")
    assert verified(store) in (0, 3)


@pytest.mark.slow
def test_a_spool_whose_collector_is_away_no_longer_changes_after_close(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "spools"))
    session = anchorlib.start("run1", store=f"grpc://127.0.0.1:{unused_port()}")
    for n in range(500):
        anchorlib.anchor(torch.full((1000,), float(n)), "x")
    session.close(timeout=0.2)
    before = files_below(tmp_path / "spools")
    assert before
    time.sleep(0.5)
    assert files_below(tmp_path / "spools") == before


def test_no_digest_is_computed_on_the_training_thread_where_values_are_dropped(store, monkeypatch):
    made_by, is_full = set(), threading.Event()

    def noted(*arguments):
        made_by.add(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            is_full.wait()  # a drain that keeps up would leave nothing to drop
        return figures_of(*arguments)

    monkeypatch.setattr("anchorlib.recorder.slot_records.figures_of", noted)
    session = anchorlib.start(
        "run1", store=store, on_full="drop", queue_bytes=1 << 16, recorder="thread"
    )
    for n in range(20):
        anchorlib.anchor(torch.full((1000,), float(n)), "x")
    is_full.set()
    session.close()
    kept = anchorlib.open_run("run1", store)["x"].kept
    assert not kept.all()
    assert made_by == {"anchorlib-drain"}


# -- counters


@pytest.mark.slow
def test_counters_are_true_before_any_flush(store):
    with anchorlib.start("run1", store=store) as session:
        for n in range(1, 6):
            anchorlib.anchor(torch.ones(3), "x")
            anchorlib.anchor(torch.ones(3), "y", mode="summary")
            assert (session.counters.records, session.counters.bytes) == (2 * n, 12 * n)
        anchorlib.anchor(torch.ones(2, device="meta"), "nowhere")
        assert session.counters.gaps == 1
    assert (session.counters.records, session.counters.bytes) == (10, 60)


@pytest.mark.slow
def test_counters_tell_of_a_record_that_a_window_holds_once_it_is_emitted(store):
    with anchorlib.start("run1", store=store) as session:
        for _ in range(3):
            anchorlib.anchor(torch.ones(3), "x", mode=anchorlib.Sum(2))
            session.step()
        assert session.counters.records == 1
    assert session.counters.records == 2
