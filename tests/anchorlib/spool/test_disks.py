"""Spools on disks that fill up, fail, and come back."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import time

import numpy as np
import pytest

from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.record import Coordinates, Record
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.store import LocalLocation, RankReader
from anchorlib.summary import summarise
from tests.anchorlib.spool.spooling import (
    FailingDisk,
    Taker,
    Written,
    segments,
    warnings_in,
)
from tests.delivery.lines import (
    check_store,
    free_port,
    numbered,
    push,
)


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("short", [True, False])
def test_a_disk_that_fails_costs_nothing_while_memory_lasts(tmp_path, caplog, code, short):
    disk = FailingDisk(6000, code, short=short)
    left = Written(tmp_path / "spools", disk)
    for number in range(100):
        left.put([number])
    assert left.frames.spilling
    assert left.outbox.waiting == 100
    (warning,) = warnings_in(caplog)
    assert "records wait in memory until it can" in warning
    assert left.frames.save() is False
    disk.room = 1 << 30  # space returns
    left.put([100])
    assert left.frames.save() is True
    left.die()
    push(left.folder, tmp_path / "store")
    assert check_store(tmp_path / "store", 101) == 101


def large(number: int) -> Record:
    raw = np.full(1 << 18, number, "<f4")
    where = Coordinates(number)
    return Record(
        "fc1", "grad", "all", where, number, number, "float32", raw.shape, raw,
        summarise(raw, "float32"),
    )  # fmt: skip


def used_again(written: Written, number: int) -> None:
    """Hands a large record over, and uses its array for something else, as a session does."""
    record = large(number)
    for frame in written.encoder.encode(block_of([record])):
        written.frames.store(frame, more=False)
        written.outbox.append(frame)
    record.raw[:] = -1


def test_what_waits_in_memory_is_no_view_of_an_array_that_is_used_again(tmp_path):
    disk = FailingDisk(2 << 20)  # room for one of them, and a part of the next
    left = Written(tmp_path / "spools", disk, frame_bytes=1 << 20)
    for number in range(3):
        used_again(left, number)
    assert left.frames.spilling
    taker = Taker(left.outbox)
    while taker.take():
        pass  # each digest is compared with the values that arrive
    assert taker.steps == [0, 1, 2]
    disk.room = 1 << 30
    assert left.frames.save()
    left.die()
    push(left.folder, tmp_path / "store")
    reader = RankReader(LocalLocation(tmp_path / "store" / "run1.zarr"), 0)
    assert [reader.raw(row)[0] for row in range(3)] == [0, 1, 2]


def test_a_disk_that_cannot_even_cut_back_leaves_whole_records(tmp_path):
    disk = FailingDisk(6000)
    disk.cannot_truncate = True
    left = Written(tmp_path / "spools", disk)
    for number in range(50):
        left.put([number])
    disk.room = 1 << 30
    assert left.frames.save()
    left.die()
    assert len(segments(left.folder)) == 2
    done = push(left.folder, tmp_path / "store")
    assert (check_store(tmp_path / "store", 50), done.lost) == (50, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_frames_are_sent_once_in_order_while_the_disk_comes_and_goes(tmp_path, seed):
    chance = random.Random(seed)
    disk = FailingDisk(4000)
    live = Written(tmp_path / "spools", disk, segment_bytes=5000)
    taker = Taker(live.outbox)
    number = 0
    for _ in range(300):
        event = chance.randrange(8)
        if event < 3:
            live.put(range(number, number + 3))
            number += 3
        elif event == 3:
            disk.room = chance.choice([0, 0, 3000, 20_000])
            live.frames._retry_at = 0.0
        elif event == 4:
            taker.answer(chance.randrange(len(taker.steps) + 1))
        elif event == 5 and chance.random() < 0.3:
            taker.begin()
        else:
            taker.take()
    disk.room = 1 << 30
    live.frames._retry_at = 0.0
    live.put([number])
    while taker.take():
        taker.answer(len(taker.steps))
    assert taker.steps == list(range(number + 1)), f"seed {seed}"
    live.die()


def test_under_power_a_put_returns_after_the_disk_has_it(tmp_path):
    disk = FailingDisk(1 << 30)
    live = Written(tmp_path / "spools", disk, power=True)
    live.put([0])
    assert disk.synced[-1] == segments(live.folder)[0].stat().st_size
    live.die()


def test_without_power_the_disk_has_it_soon_all_the_same(tmp_path):
    disk = FailingDisk(1 << 30)
    live = Written(tmp_path / "spools", disk)
    live.put([0])
    deadline = time.monotonic() + 5
    while not disk.synced:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    live.die()


def test_a_disk_that_does_not_sync_is_told_of_once(tmp_path, caplog):
    disk = FailingDisk(1 << 30)
    disk.sync_fails = True
    live = Written(tmp_path / "spools", disk, power=True)
    live.put([0])
    live.put([1])
    live.die()
    (warning,) = warnings_in(caplog)
    assert "may be lost if the power fails" in warning


needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


@pytest.mark.slow
@needs_mount
def test_a_real_disk_that_is_full_costs_nothing_while_memory_lasts(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "1GiB")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        port = free_port()
        sink = RemoteSink(f"grpc://127.0.0.1:{port}", RunOptions("run1", 0), spool=small)
        for number in range(400):
            sink.put(block_of([numbered(number, 3000)]))
        assert sink._spool.frames.spilling or sink.dropped
        (small / "other").unlink(missing_ok=True)
        with serve(tmp_path / "store", f"127.0.0.1:{port}"):
            assert sink.close(30) == 0
        reader = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
        assert reader.committed == 400
        assert sink.dropped == int((reader.column("flags") & 1).sum())
    finally:
        subprocess.run(["umount", str(small)], check=True)
