"""Trainers that are killed: what `put` had taken is delivered by `anchor push`, once, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anchor_server import serve
from anchorlib.store import LocalLocation, RankReader
from tests.delivery.chaos import Chaos
from tests.delivery.lines import check_store, free_port, push, spools
from tests.delivery.mortal import FAILPOINTS
from tests.seeds import seeds


def start(address: str, folder: Path, first: int, last: int, seed: int, *point: str):
    """A trainer, as a process of its own; its log and spools are below `folder`."""
    arguments = [address, folder / "spools", folder / "log", first, last, seed, *point]
    command = [sys.executable, "-m", "tests.delivery.trainer", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def put(folder: Path) -> int:
    """How far the trainer came: the end of the last `put` that returned."""
    log = folder / "log"
    lines = log.read_text().split() if log.exists() else []
    return int(lines[-1].split("-")[1]) if lines else 0


@pytest.mark.parametrize("point", FAILPOINTS)
def test_a_trainer_killed_at_a_failpoint_loses_nothing_that_put_had_taken(tmp_path, point):
    seed = sum(map(ord, point))
    with serve(tmp_path / "store") as collector:
        # Segments are removed only where a collector acknowledges.
        address = collector.address if point == "remove" else f"127.0.0.1:{free_port()}"
        count = random.Random(seed).randrange(1, 5)
        trainer = start(address, tmp_path, 0, 3000, seed, f"{point}:{count}")
        assert trainer.wait(60) == -signal.SIGKILL
    for folder in spools(tmp_path / "spools"):
        done = push(folder, tmp_path / "store")
        assert done.set_aside == (point == "half")
    taken = put(tmp_path)
    if taken or (tmp_path / "store" / "run1.zarr").exists():  # it may die before its first record
        assert check_store(tmp_path / "store", taken) >= taken


@pytest.mark.parametrize("seed", seeds(0, 2, 8))
def test_a_trainer_killed_at_random_is_delivered_where_it_was_half_delivered(tmp_path, seed):
    chance = random.Random(seed)
    address = f"127.0.0.1:{free_port()}"
    with serve(tmp_path / "store", address):
        trainer = start(address, tmp_path, 0, 1_000_000, seed)
        deadline = time.monotonic() + 30
        while put(tmp_path) < chance.randrange(500, 2000):
            assert time.monotonic() < deadline, f"seed {seed}"
            time.sleep(0.01)
    time.sleep(chance.random() / 4)
    trainer.kill()
    trainer.wait()
    (folder,) = spools(tmp_path / "spools")
    with serve(tmp_path / "store", address):
        done = push(folder, f"grpc://{address}")
    assert done.already > 0, f"seed {seed}"
    assert check_store(tmp_path / "store", put(tmp_path)) == done.records, f"seed {seed}"


PUSHING = """
import sys
from pathlib import Path
from anchorlib.spool.delivery import deliver

said = lambda done, _: print(done, flush=True)
deliver(Path(sys.argv[1]), sys.argv[2], patience=20, progress=said)
"""


def test_a_push_that_is_cut_short_goes_on_where_it_ended(tmp_path):
    trainer = start(f"127.0.0.1:{free_port()}", tmp_path, 0, 1_000_000, 1)
    while put(tmp_path) < 1500:
        time.sleep(0.01)
    trainer.kill()
    trainer.wait()
    (folder,) = spools(tmp_path / "spools")
    ends = put(tmp_path)
    for part in (1, 500):
        command = [sys.executable, "-c", PUSHING, str(folder), str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pushing:
            assert pushing.stdout is not None
            while int(pushing.stdout.readline()) < part:
                pass
            pushing.kill()
    assert push(folder, tmp_path / "store").already >= 500
    assert check_store(tmp_path / "store", ends) >= ends


def test_the_next_attempt_delivers_what_the_one_before_left(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    first = start(address, tmp_path, 0, 1_000_000, 1)
    while put(tmp_path) < 200:
        time.sleep(0.01)
    first.kill()
    first.wait()
    with serve(tmp_path / "store", address):
        second = start(address, tmp_path, 5_000, 5_300, 2)
        assert second.wait(60) == 0
    assert spools(tmp_path / "spools") == []
    rank = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
    steps = [int(step) for step in rank.column("step")]
    assert steps == [*range(len(steps) - 300), *range(5_000, 5_300)]
    assert len(steps) - 300 >= 200
    assert [attempt.first_row for attempt in rank.catalogue.attempts] == [0, len(steps) - 300]


# Seed 16 to a collector: a recorder thread that is killed, a recorder process, durability "power".
@pytest.mark.long
@pytest.mark.parametrize(
    ("remote", "planned"), [(True, 16), (False, 7)], ids=["collector", "directory"]
)
def test_chaos_in_short(tmp_path, remote, planned):
    seed = int(os.environ.get("CHAOS_SEED", planned))
    outcome = Chaos(seed, 600, tmp_path, patience=10, remote=remote).run()
    assert outcome.good, outcome
