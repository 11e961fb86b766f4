"""Power loss: under durability="power" what was handed over is there when the power comes back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.anchorlib.store.auditing import faults
from tests.delivery.forgetful import forgetful, lose_power
from tests.delivery.lines import check_store, eventually, free_port, push, spools
from tests.delivery.test_trainers import put

SEEDS = range(int(os.environ.get("POWER_SEEDS", "2")))  # with seed 0 all that was not synced goes

EMBEDDED = """
import sys
from pathlib import Path
from anchorlib.block import block_of
from anchorlib.sinks.embedded import EmbeddedSink
from anchorlib.store import Writer
from tests.delivery.lines import numbered

sink = EmbeddedSink(Writer.open(Path(sys.argv[1]), "run1", 0, fsync=True))
for start in range(0, 100_000, 5):
    sink.put(block_of([numbered(n) for n in range(start, start + 5)]))
    if start % 40 == 0:
        sink.flush().wait(None)
    print(start + 5, flush=True)
"""

COLLECTOR = """
import sys
from anchor_server import Collector
collector = Collector(sys.argv[1], sys.argv[2], fsync=True)
collector.start()
print("up", flush=True)
collector.wait()
"""


@pytest.fixture(scope="module")
def mounted(tmp_path_factory) -> Iterator[Path]:
    """The file system that forgets; where it cannot be mounted, all these tests are skipped."""
    with forgetful(tmp_path_factory.mktemp("power") / "disk") as disk:
        yield disk


@pytest.fixture
def disk(mounted: Path, tmp_path: Path) -> Path:
    """A folder of a test's own, whose name has reached the disk."""
    folder = mounted / tmp_path.name
    folder.mkdir()
    names = os.open(mounted, os.O_RDONLY)
    os.fsync(names)
    os.close(names)
    return folder


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed(recorder: subprocess.Popen[str], seed: int) -> int:
    """Kills a recorder in the middle of its work; what it had put."""
    assert recorder.stdout is not None
    said = [recorder.stdout.readline() for _ in range(random.Random(seed).randrange(3, 25))]
    recorder.kill()
    said += recorder.communicate()[0].split()
    return int(said[-1])


def started_trainer(address: str, disk: Path, log: Path, seed: int) -> subprocess.Popen[bytes]:
    """A trainer under power that has put some records, at least."""
    arguments = (address, disk / "spools", log, 0, 10**6, seed)
    command = [sys.executable, "-m", "tests.delivery.trainer", *map(str, arguments), "power"]
    trainer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with eventually(60) as now:
        while put(log.parent) < random.Random(seed).randrange(100, 400):
            assert now()
    return trainer


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_embedded_session_had_put_survives_power_loss(mounted, disk, seed):
    recorder = started(EMBEDDED, disk / "store")
    done = killed(recorder, seed)
    lose_power(mounted, seed)
    assert done > 0
    check_store(disk / "store", done)
    assert faults(disk / "store") == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_spool_had_taken_survives_power_loss(mounted, disk, tmp_path, seed):
    trainer = started_trainer(f"127.0.0.1:{free_port()}", disk, tmp_path / "log", seed)
    trainer.kill()
    trainer.wait()
    lose_power(mounted, seed)
    done = put(tmp_path)
    assert done > 0
    for folder in spools(disk / "spools"):
        push(folder, tmp_path / "store")
    check_store(tmp_path / "store", done)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_where_trainer_and_collector_lose_power_together(
    mounted, disk, tmp_path, seed
):
    address = f"127.0.0.1:{free_port()}"
    collector = started(COLLECTOR, disk / "store", address)
    assert collector.stdout is not None
    assert collector.stdout.readline() == "up\n"
    trainer = started_trainer(address, disk, tmp_path / "log", seed)
    for process in (trainer, collector):
        process.kill()
        process.wait()
    collector.stdout.close()
    lose_power(mounted, seed)
    done = put(tmp_path)
    assert done > 0
    for folder in spools(disk / "spools"):
        push(folder, disk / "store")
    check_store(disk / "store", done)
    assert faults(disk / "store") == []


def test_without_it_the_same_loss_shows(mounted: Path, disk: Path):
    # Else the tests above would pass on a file system that forgets nothing.
    recorder = started(EMBEDDED.replace("fsync=True", "fsync=False"), disk / "store")
    assert killed(recorder, 0) > 0
    lose_power(mounted, 0)
    assert not (disk / "store/run1.zarr/rank0/records/seq/c.0").exists()
