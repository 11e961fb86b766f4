"""Whole sessions: a restart by torchrun through a collector, and DataLoader workers beside one."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import anchorlib
from anchor_server import serve
from anchorlib.store import LocalLocation, RankReader
from tests.delivery.lines import free_port, spools
from tests.waiting import until
from tests.warm import warm_python

TRAINING = """
import os, signal, sys
import torch, anchorlib

first, last, die = map(int, sys.argv[1:])
with anchorlib.start(first_step=first) as session:
    for step in range(first, last):
        anchorlib.anchor(torch.full((4,), float(step)), "x")
        session.step()
    if die:
        queue = session._queue
        while queue.records.taken > queue.handed_over:  # what waits reaches the spool
            pass
        os.kill(os.getpid(), signal.SIGKILL)
"""


def train(store: str, spool: Path, restart: int, *arguments: int) -> int:
    environment = {
        "ANCHOR_STORE": store,
        "ANCHOR_SPOOL": str(spool),
        "TORCHELASTIC_RUN_ID": "job1",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "PATH": "/usr/bin:/bin",
        "HOME": str(spool),
    }
    command = [warm_python(), "-c", TRAINING, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def test_a_restart_by_torchrun_is_the_next_attempt_through_a_collector_too(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    store, place = tmp_path / "store", tmp_path / "spools"
    # The first attempt dies while nobody collects; the second delivers what it left, then its own.
    assert train(f"grpc://{address}", place, 0, 0, 6, 1) == -9
    with serve(store, address):
        assert train(f"grpc://{address}", place, 1, 4, 9, 0) == 0
    assert spools(place) == []
    rank = RankReader(LocalLocation(store / "job1.zarr"), 0)
    assert rank.column("step").tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert rank.column("attempt").tolist() == [0] * 6 + [1] * 5
    series = anchorlib.open_run("job1", store)["x@value"]
    assert series.columns["step"].tolist() == list(range(9))
    assert [float(row[0]) for row in series.values()] == list(map(float, range(9)))


class Squares(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return anchorlib.anchor(torch.tensor(float(index * index)), "inside a worker")


def test_a_worker_that_is_forked_beside_a_live_remote_session_never_hangs(tmp_path):
    with serve(tmp_path / "store") as collector, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
        with anchorlib.start("run1", store=f"grpc://{collector.address}") as session:
            for step in range(10):
                loader = DataLoader(
                    Squares(),
                    batch_size=4,
                    num_workers=2,
                    multiprocessing_context="fork",
                    timeout=60,  # a worker that hangs is an error
                )
                total = sum(float(batch.sum()) for batch in loader)
                assert total == sum(n * n for n in range(16))
                anchorlib.anchor(torch.tensor(total), "total")
                session.step()
                assert step == session.current_step - 1
            session.flush(30)
    run = anchorlib.open_run("run1", tmp_path / "store")
    assert [info.name for info in run.tensors()] == ["total"]
    assert run["total@value"].columns["step"].tolist() == list(range(10))


def test_training_never_stops_for_a_dead_collector_and_a_full_spool(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "200kB")
    store = f"grpc://127.0.0.1:{free_port()}"
    with anchorlib.start("run1", store=store) as session:
        for step in range(60):
            anchorlib.anchor(torch.full((5000,), float(step)), "x")
            session.step()
        until(lambda: session._queue.handed_over == 60)
        with pytest.raises(anchorlib.FlushTimeoutError):
            session.flush(0.1)
        assert session.counters.dropped
        session.close(timeout=0.2)
    assert session.counters.dropped < 60
    (folder,) = spools(tmp_path / "spools")
    lines = [record.getMessage() for record in caplog.records]
    assert sum(f"anchor push {folder} --to {store}" in line for line in lines) == 1


@pytest.mark.parametrize("recorder", ["process", "thread"])
def test_the_last_line_says_that_records_wait_in_the_spool(tmp_path, caplog, recorder):
    caplog.set_level("INFO", "anchorlib")
    store = f"grpc://127.0.0.1:{free_port()}"
    with anchorlib.start("run1", store=store, recorder=recorder) as session:
        anchorlib.anchor(torch.ones(3), "x")
        session.close(timeout=0.2)
    (line,) = [one for one in caplog.messages if "run run1, rank 0: " in one]
    assert line.endswith(f"1 record, 12 B, of which 1 wait in the spool for {store}")
