"""A recorder process: what an anchor took survives its trainer, and a recorder that dies costs
nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib.errors import RunExistsError, StoreError
from anchorlib.recorder import default_place
from anchorlib.store.disk.lock import is_locked, lock_path
from tests.waiting import until
from tests.warm import warm_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(default_place() != "process", reason="this system has no recorder process"),
]


@pytest.fixture
def store(tmp_path):
    return tmp_path / "anchors"


def start(store, **options):
    return anchorlib.start("run1", store=store, recorder="process", **options)


def recorder_of(session):
    """The process that records for `session`."""
    return session._queue._worker._child.pid


def anchored(session, count, name="x", first=0):
    for n in range(first, first + count):
        anchorlib.anchor(torch.full((4, 4), float(n)), name, grad=False)


def values(store, name="x"):
    return anchorlib.open_run("run1", store)[name].values()[:, 0, 0].tolist()


TRAINER = """
import ctypes, os, signal, sys
import torch
import anchorlib

session = anchorlib.start("run1", store=sys.argv[1], recorder="process")
for n in range(int(sys.argv[2])):
    anchorlib.anchor(torch.full((4, 4), float(n)), "x", grad=False)
{death}
"""
DEATHS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "a segmentation fault": "ctypes.string_at(0)",
    "aborted": "os.abort()",
    "out without a word": "os._exit(3)",
}


def trained(store, count, death):
    """A trainer, as a process of its own, that anchors `count` tensors and dies; its exit code."""
    code = TRAINER.format(death=DEATHS[death])
    return subprocess.run([warm_python(), "-c", code, store, str(count)], check=False).returncode


@pytest.mark.parametrize("death", DEATHS)
def test_all_that_a_trainer_anchored_outlives_it(store, death):
    assert trained(store, 3000, death) != 0
    until(lambda: not is_locked(lock_path(store, "run1", 0)))
    assert values(store) == [float(n) for n in range(3000)]
    assert anchorlib.open_run("run1", store).state == "open"


def test_a_trainer_that_dies_before_its_recorder_runs_loses_nothing(store):
    trained(store, 1, "killed")
    until(lambda: not is_locked(lock_path(store, "run1", 0)))
    assert values(store) == [0.0]


def test_a_restart_waits_for_the_recorder_of_the_trainer_that_died(store):
    trained(store, 10_000, "killed")  # whose recorder has not begun to store them
    with start(store, resume=True, first_step=1) as session:
        anchored(session, 2, first=10_000)
    assert values(store) == [float(n) for n in range(10_002)]


@pytest.mark.parametrize("deaths", [2, 3])  # behind the third a thread goes on
def test_a_recorder_that_is_killed_costs_nothing_and_doubles_nothing(store, deaths, caplog):
    with start(store) as session:
        worker = session._queue._worker
        for turn in range(deaths + 1):
            anchored(session, 500, first=500 * turn)
            if turn % 2:
                session.flush()
            if turn < deaths and worker._instead is None:
                killed = recorder_of(session)
                os.kill(killed, signal.SIGKILL)
                until(lambda dead=killed: worker._instead or worker._child.pid != dead)
    assert values(store) == [float(n) for n in range(500 * (deaths + 1))]
    assert session.counters.dropped == 0
    assert anchorlib.open_run("run1", store).state == "closed"
    assert caplog.text.count("a thread of this process goes on") == (deaths > 2)


def test_a_recorder_that_does_not_answer_is_ended_and_the_run_is_free(store, monkeypatch, caplog):
    monkeypatch.setattr("anchorlib.recorder.queue._BATCH_SECONDS", 0.1)
    monkeypatch.setattr("anchorlib.recorder.queue._OPERATION_SECONDS", 0.1)
    session = start(store)
    anchored(session, 10)
    session.flush()
    os.kill(recorder_of(session), signal.SIGSTOP)
    anchored(session, 5, first=10)
    session.close(timeout=0.1)
    assert values(store) == [float(n) for n in range(10)]
    assert (session.counters.records, session.counters.dropped) == (10, 5)
    assert not is_locked(lock_path(store, "run1", 0))
    assert "5 records of run run1 did not reach" in caplog.text


def test_counters_and_listing_are_those_of_a_recorder_thread(tmp_path):
    seen = []
    for place in ("process", "thread"):
        with anchorlib.start("run1", store=tmp_path / place, recorder=place) as session:
            anchored(session, 3)
            anchorlib.anchor(torch.ones(2), "s", anchorlib.Summary)
            anchorlib.anchor(torch.ones(2, device="meta"), "m")
            session.flush()
            seen.append((session.counters, session.tensors(), session.latest("x").tolist()))
        run = anchorlib.open_run("run1", tmp_path / place)
        seen[-1] += (session.counters, run.gaps(), [one.name for one in run.tensors()])
    assert seen[0] == seen[1]


def test_nothing_is_left_behind_by_sessions_in_turn(tmp_path):
    def descriptors():
        gc.collect()  # a ring's memory goes with its session
        return len(list(Path("/proc/self/fd").iterdir()))

    before = None
    for turn in range(2):
        with start(tmp_path / f"{turn}") as session:
            anchored(session, 5)
            pid = recorder_of(session)
        assert not Path(f"/proc/{pid}").exists()
        assert before in {None, descriptors()}
        before = descriptors()
        assert values(tmp_path / f"{turn}") == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_recorder_has_a_session_of_its_own_a_name_and_no_torch(store):
    with start(store, rank=3) as session:
        session.flush()
        pid = recorder_of(session)
        process = Path(f"/proc/{pid}")
        assert (process / "cmdline").read_text().rstrip("\0") == "anchor-recorder run1 rank 3"
        assert "libtorch" not in (process / "maps").read_text()
        assert os.getsid(pid) != os.getsid(0)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, ignored)
        anchored(session, 2)
    assert anchorlib.open_run("run1", store)["x"].values().shape == (2, 4, 4)


def test_a_forked_child_neither_records_nor_disturbs(store):
    with start(store) as session:
        anchored(session, 2)
        child = os.fork()
        if child == 0:
            anchorlib.anchor(torch.ones(4, 4), "x", grad=False)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        anchored(session, 2, first=2)
    assert values(store) == [0.0, 1.0, 2.0, 3.0]


def test_a_run_that_is_shorter_than_the_start_of_its_recorder_is_stored_whole(store):
    session = start(store)
    anchored(session, 3)
    session.close(timeout=0.2)
    assert values(store) == [0.0, 1.0, 2.0]


def test_what_start_refuses_it_refuses_at_once(store):
    start(store).close()
    with pytest.raises(RunExistsError):
        start(store)
    (store / "file").write_text("")
    with pytest.raises(StoreError):
        start(store / "file")


@pytest.mark.parametrize("on_full", ["block", "drop"])
def test_a_tensor_larger_than_the_queue_arrives(store, on_full):
    large = torch.arange(100_000, dtype=torch.float32)
    with start(store, queue_bytes=1 << 12, on_full=on_full) as session:
        for n in range(3):
            anchorlib.anchor(large + n, "large", grad=False)
            session.flush()
    found = anchorlib.open_run("run1", store)["large"].values()
    assert np.array_equal(found, np.stack([large.numpy() + n for n in range(3)]))


def test_what_a_recorder_has_to_say_is_said_in_the_trainers_log(store, caplog, monkeypatch):
    with caplog.at_level(logging.WARNING), start(store) as session:
        monkeypatch.setattr(
            "anchorlib.capture.recording.streams.Stream.__init__", _with_a_bad_phase()
        )
        anchored(session, 2)
        session.flush()
    assert "x@value at step 0 was left out" in caplog.text
    assert session.counters.dropped == 2


def _with_a_bad_phase():
    from anchorlib.capture.recording.streams import Stream

    original = Stream.__init__

    def made(self, name, kind, mode, phase, arithmetic):
        original(self, name, kind, mode, "p" * 2000, arithmetic)

    return made


def test_where_no_process_can_be_had_a_thread_records(store, monkeypatch, caplog):
    def refused(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "memfd_create", refused)
    with start(store) as session:
        anchored(session, 3)
    assert values(store) == [0.0, 1.0, 2.0]
    assert "a thread of this process records instead" in caplog.text


@pytest.mark.parametrize("place", ["process", "thread"])
def test_the_place_can_be_named_in_the_environment(store, monkeypatch, place):
    monkeypatch.setenv("ANCHOR_RECORDER", place)
    with anchorlib.start("run1", store=store) as session:
        assert hasattr(session._queue._worker, "_child") == (place == "process")
