"""Beyond its bounds a run keeps summaries, and says how many values it left out."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from anchorlib.errors import StoreError
from anchorlib.record import UNKNOWN, Flag, Gap
from anchorlib.store import Writer
from anchorlib.store.disk import full as full_disk
from anchorlib.store.disk import gaps as gaps_module
from anchorlib.store.write import slots as slots_module
from tests.anchorlib.store.records import assert_holds, floats, reader, record
from tests.writing import put


def blocks(count: int, start: int = 0) -> list[Any]:
    return [record("x", step, np.ones(1000, "<f4")) for step in range(start, start + count)]


def test_beyond_max_bytes_summaries_are_kept_and_a_gap_is_stored(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0, max_bytes=50_000) as writer:
        for one in blocks(20):
            put(writer, [one])
    found = reader(tmp_path)
    kept = found.kept(np.arange(20))
    assert 10 <= kept.sum() <= 12
    assert kept[: kept.sum()].all()
    assert found.column("sum").tolist() == [1000.0] * 20
    dropped = found.column("flags")[~kept] & Flag.VALUE_DROPPED
    assert dropped.all()
    left_out = 20 - int(kept.sum())
    assert found.gaps() == [Gap("x", "grad", "all", "max_bytes", left_out, 20 - left_out, 19)]


def test_a_batch_that_does_not_fit_whole_is_kept_in_part(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0, max_bytes=50_000) as writer:
        put(writer, blocks(20))
        assert writer.committed == 20
    assert 0 < reader(tmp_path).kept(np.arange(20)).sum() <= 12


def test_a_run_that_is_resumed_counts_what_it_has(tmp_path: Path) -> None:
    for attempt in range(3):
        with Writer.open(tmp_path, "run1", 0, resume=True, max_bytes=50_000) as writer:
            put(writer, blocks(10, start=10 * attempt))
    found = reader(tmp_path)
    assert 10 <= found.kept(np.arange(30)).sum() <= 12
    assert sum(gap.count for gap in found.gaps()) == 30 - found.kept(np.arange(30)).sum()


def test_a_writer_that_comes_back_goes_on_counting_what_it_left_out(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        writer = Writer.open(tmp_path, "run1", 0, writer_id=b"one", max_bytes=1)
        put(writer, blocks(10, start=start))
        writer.publish()
        writer.abandon()
    assert reader(tmp_path).gaps() == [Gap("x", "grad", "all", "max_bytes", 30, 0, 29)]


class Free(NamedTuple):
    f_bavail: int
    f_blocks: int
    f_frsize: int = 4096
    f_files: int = 0  # as file systems say that make inodes as they need them
    f_favail: int = 0


def test_a_twentieth_of_the_disk_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Free(f_bavail=60, f_blocks=1000)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, blocks(20))  # ten pages are free beyond the twentieth
    found = reader(tmp_path)
    assert found.kept(np.arange(20)).sum() == 10
    assert [gap.reason for gap in found.gaps()] == ["disk"]


def test_a_twentieth_of_the_inodes_stays_free_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Free(f_bavail=1000, f_blocks=1000, f_files=1000, f_favail=50)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, blocks(5))
    found = reader(tmp_path)
    assert (found.committed, found.kept(np.arange(5)).sum()) == (5, 0)
    assert [gap.reason for gap in found.gaps()] == ["disk"]
    free = Free(f_bavail=1000, f_blocks=1000, f_files=1000, f_favail=1000)
    with Writer.open(tmp_path, "run2", 0) as writer:
        put(writer, blocks(5))
        assert writer.left_out.records == 0


def test_who_waits_for_room_cannot_ask_for_the_twentieth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer.open(tmp_path, "run1", 0, max_bytes=1 << 60, wait_for_room=True) as writer:
        monkeypatch.setattr(os, "statvfs", lambda path: Free(f_bavail=50, f_blocks=1000))
        monkeypatch.setattr(full_disk, "RECHECK_SECONDS", -1.0)
        with pytest.raises(StoreError, match="beyond the twentieth that stays free"):
            put(writer, blocks(1))


@pytest.mark.slow
def test_totals_that_grow_for_ever_take_little_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(gaps_module, "time", SimpleNamespace(monotonic=lambda: 10.0 * next(clock)))
    monkeypatch.setattr(gaps_module, "_SMALL", 0)
    with Writer.open(tmp_path, "run1", 0, max_bytes=1) as writer:
        for one in blocks(400):
            put(writer, [one])  # each in a second of its own
        writer.publish()
        lines = (tmp_path / "run1.zarr/rank0/catalog/c.0").read_bytes().count(b'"gap"')
    assert lines < 40
    assert [gap.count for gap in reader(tmp_path).gaps()] == [400]


def test_series_beyond_a_bound_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps_module, "SERIES", 3)
    for attempt in range(2):
        with Writer.open(tmp_path, "run1", 0, writer_id=b"one", max_bytes=1) as writer:
            for number in range(5):
                put(writer, [record(f"t{number}", attempt, np.ones(1000, "<f4"))])
    counts = {gap.name: gap.count for gap in reader(tmp_path).gaps()}
    assert counts == {"t0": 2, "t1": 2, "t2": 2, UNKNOWN: 4}


def test_a_disk_that_is_full_costs_values_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = slots_module.write_all

    def full(descriptor: int, buffers: Any, offset: int, size: int) -> None:
        if size >= 4000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, buffers, offset, size)

    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, blocks(2))
        with monkeypatch.context() as patch:
            patch.setattr(slots_module, "write_all", full)
            put(writer, [*blocks(3, start=2), record("y", 2, floats(1))])
    found = reader(tmp_path)
    assert found.kept(np.arange(6)).tolist() == [True, True, False, False, False, False]
    assert {gap.reason: gap.count for gap in found.gaps() if gap.name == "x"} == {"disk": 3}


def test_a_disk_that_fails_is_one_line_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before, after = blocks(2), blocks(2, start=2)
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, before)
        with monkeypatch.context() as patch:
            patch.setattr(slots_module, "write_all", broken)
            with pytest.raises(StoreError, match=r"rank 0 of run 'run1'.*error"):
                put(writer, [*blocks(1, start=9), record("new", 9, floats(1))])
        put(writer, after)
    assert_holds(reader(tmp_path), before + after)


def test_a_gap_is_a_total_of_which_the_newest_counts(tmp_path: Path) -> None:
    lost = Gap("x", "grad", "all", "queue", 3, 0, 2)
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.gap([lost])
        writer.gap([Gap("x", "grad", "all", "queue", 5, 0, 4)])
        writer.gap([Gap("x", "grad", "all", "fork", 1, 1, 1)])
    with Writer.open(tmp_path, "run1", 0, resume=True) as writer:
        writer.gap([lost])
    counts = [(gap.reason, gap.count) for gap in reader(tmp_path).gaps()]
    assert counts == [("queue", 5), ("fork", 1), ("queue", 3)]
