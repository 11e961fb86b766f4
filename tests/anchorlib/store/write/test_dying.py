"""The writer dies at one system call after another: the store is right after each of them.

`test_crash` kills a process and hits whatever it hits; this goes through the calls in order.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchorlib.record import Record
from anchorlib.store import Writer
from tests.anchorlib.store.records import assert_holds, filled, reader, record
from tests.anchorlib.store.write.test_crash import check_foreign, check_rows
from tests.seeds import seeds
from tests.writing import put

pytestmark = pytest.mark.slow

EFFECTS = ("open", "pwritev", "pwrite", "write", "mkdir", "rename", "ftruncate", "unlink")


class Died(BaseException):
    """The process is no more; nothing it does afterwards has an effect."""


class Watched:
    """Calls `look` after each effect on the file system."""

    def __init__(self, patch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
        self.look = look
        self.effects = 0
        for name in EFFECTS:
            patch.setattr(os, name, self.wrap(getattr(os, name)))
        patch.setattr(io, "open", self.wrap(io.open))  # which a path's open is

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def effect(*args: Any, **kwargs: Any) -> Any:
            done = call(*args, **kwargs)
            self.effects += 1
            look, self.look = self.look, lambda: None  # it opens files too
            look()
            self.look = look
            return done

        return effect


class Mortal:
    """Lets `life` effects on the file system happen; of the next write only a half does."""

    def __init__(self, patch: pytest.MonkeyPatch, life: int) -> None:
        self.life = life
        for name in EFFECTS:
            patch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def effect(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **kwargs)  # reads leave no trace
            self.life -= 1
            if self.life == -1 and name == "pwritev":
                descriptor, buffers, offset = args
                data = b"".join(bytes(buffer) for buffer in buffers)
                os.lseek(descriptor, 0, os.SEEK_SET)
                call(descriptor, [data[: len(data) // 2]], offset)
            if self.life < 0:
                raise Died
            return call(*args, **kwargs)

        return effect


def one(name: str, step: int, dtype: str, shape: tuple[int, ...], mode: str = "all") -> Record:
    return record(name, step, filled(dtype, shape, seed=step), dtype=dtype, mode=mode)


def batches() -> list[list[Record]]:
    """New series, new arrays, small and large records, flat arrays, summaries alone."""
    return [
        [one("a/b", 0, "float32", (100,)), one("c", 0, "int8", ())],
        [one("r", 1, "float16", (n, 2)) for n in range(10)],
        [one("a/b", 2, "float32", (100,)), one("big", 2, "uint8", (300_000,))],
        [one("s", 3, "float32", (9,), mode="summary")],
    ]


def live(store: Path, done: list[int]) -> None:
    """A writer's life; `done` grows with each batch that was acknowledged."""
    writer = Writer.open(store, "run1", 0, writer_id=b"same")
    try:
        for number, batch in enumerate(batches()):
            put(writer, batch)
            done.append(len(batch))
            if number % 2:
                writer.publish()
        writer.close()
    finally:
        writer.abandon()  # as the system does: it closes files and drops the lock


def lives(store: Path) -> int:
    """How many effects a whole life has."""
    with pytest.MonkeyPatch.context() as patch:
        mortal = Mortal(patch, 1 << 30)
        live(store, [])
        return (1 << 30) - mortal.life


def die_and_check(store: Path, life: int) -> None:
    done: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        Mortal(patch, life)
        with contextlib.suppress(Died):
            live(store, done)
    everything = [record for batch in batches() for record in batch]
    if (store / "run1.zarr" / "rank0").exists():
        found = reader(store)
        assert sum(done) <= found.committed
        assert_holds(found, everything[: found.committed])
        check_rows(found)
        check_foreign(store / "run1.zarr", found.committed)
    with Writer.open(store, "run1", 0, writer_id=b"same") as writer:
        # The rest of the stream is sent again, from the first record that was not committed.
        put(writer, everything[writer.committed :])
    assert_holds(reader(store), everything)
    check_foreign(store / "run1.zarr", len(everything))


@functools.cache
def chunk_size(folder: str) -> int:
    told = json.loads(Path(folder, "zarr.json").read_bytes())
    grid = told["chunk_grid"]["configuration"]["chunk_shape"]
    return math.prod(grid) * np.dtype(told["data_type"]).itemsize


class Sizes:
    """Every file of a hierarchy is whole: documents end, chunks have their full size.

    A document is read again only where the file system says that it changed.
    """

    def __init__(self, run: Path) -> None:
        self._run = str(run)
        self._read: dict[str, tuple[int, ...]] = {}

    def check(self) -> None:
        if os.path.lexists(self._run):
            self._check(self._run)

    def _check(self, folder: str) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self._check(entry.path)
                elif entry.name != "zarr.json":
                    assert entry.stat().st_size == chunk_size(folder), entry.path
                else:
                    self._check_document(entry.path, entry.stat())

    def _check_document(self, path: str, now: os.stat_result) -> None:
        state = (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        if self._read.get(path) != state:
            assert Path(path).read_bytes().endswith(b"}"), path
            self._read[path] = state


@pytest.mark.parametrize("fsync", [pytest.param(False, marks=pytest.mark.long), True])
def test_no_file_of_the_hierarchy_is_ever_seen_unfinished(fsync: bool, tmp_path: Path) -> None:
    everything = [record for batch in batches() for record in batch]
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch, Sizes(tmp_path / "run1.zarr").check)
        for half in (everything[:7], everything[7:]):
            with Writer.open(tmp_path, "run1", 0, resume=True, fsync=fsync) as writer:
                put(writer, half)
                writer.publish()
    assert watched.effects > 100
    assert_holds(reader(tmp_path), everything)


def test_rows_that_are_blanked_leave_their_column_whole(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0, writer_id=b"same")
    put(writer, batches()[0])
    writer.abandon()
    run = tmp_path / "run1.zarr"
    seq = run / "rank0" / "records" / "seq" / "c.0"
    with seq.open("r+b") as file:  # what a power loss may leave: a row behind one that is lost
        file.seek(8 * 5)
        file.write((6).to_bytes(8, "little"))
    with pytest.MonkeyPatch.context() as patch:
        Watched(patch, Sizes(run).check)
        with Writer.open(tmp_path, "run1", 0, writer_id=b"same") as writer:
            assert writer.committed == 2
    assert np.fromfile(seq, "<u8").tolist()[:7] == [1, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("part", seeds(checked=0, tested=1, wide=52))
def test_the_store_is_right_after_one_call_and_the_next(part: int, tmp_path: Path) -> None:
    for life in range(part, lives(tmp_path / "whole"), 52):
        die_and_check(tmp_path / str(life), life)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(life, marks=pytest.mark.long) for life in (1, 2, 3))]
)
def test_every_reader_reads_on_wherever_labels_that_come_late_are_cut_off(
    first: int, tmp_path: Path
) -> None:
    life, died = first, True
    while died:
        store = tmp_path / str(life)
        with Writer.open(store, "run1", 0, writer_id=b"same") as writer:
            put(writer, [record("a", 0, filled("float32", (3,)))])
            writer.publish()
            put(writer, [record("a", 1, filled("float32", (3,)), pass_index=2, call=3)])
            with pytest.MonkeyPatch.context() as patch:
                mortal = Mortal(patch, life)
                with contextlib.suppress(Died):
                    writer.publish()
            died = mortal.life < 0
            if died:
                writer.abandon()
        check_foreign(store / "run1.zarr", 2)
        life += 4
    assert life > 9  # three chunks: made, sized, put in place
