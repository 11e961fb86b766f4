"""Runs sealed into a folder, and what has to be the same of a run before and after."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from anchorlib.reading import Run
from anchorlib.store import (
    FolderTarget,
    LocalLocation,
    RankAudit,
    RankReader,
    RunReader,
    Sealed,
    run_faults,
    seal,
    stored_records,
)


def sealed_run(run: Path, into: Path) -> list[Sealed]:
    """Seals every rank of a run, and copies its own document beside them."""
    location = LocalLocation(run)
    readers = RunReader(location, run.stem)
    readers.refresh()
    made = [
        seal(location, readers.rank(rank), FolderTarget(into, fsync=False))
        for rank in readers.ranks
    ]
    shutil.copyfile(run / "zarr.json", into / "zarr.json")
    return made


def opened(run: Path) -> Run:
    """A run as users hold it."""
    return Run(RunReader(LocalLocation(run), run.stem))


def damages(run: Path) -> list[str]:
    """What verifying says of a run as a whole, of its ranks, rows and values."""
    location = LocalLocation(run)
    found = [*run_faults(location)]
    readers = RunReader(location, run.stem)
    readers.refresh()
    for rank in readers.ranks:
        reader = readers.rank(rank)
        audit = RankAudit(location, reader)
        found += audit.faults()
        checked = [audit.rows(*part) for part in audit.parts()]
        found += [f"row {row}" for one in checked for row in one.bad]
        found += [f"label of {row}" for one in checked for row in one.labels]
    return found


def assert_same_run(live: Path, sealed: Path) -> None:
    """Every reader's answer of the sealed run is that of the live one."""
    one, two = opened(live), opened(sealed)
    assert two.tensors() == one.tensors()
    assert (two.ranks, two.steps, two.bytes) == (one.ranks, one.steps, one.bytes)
    assert (two.state, two.started_ns, two.gaps()) == (one.state, one.started_ns, one.gaps())
    for rank in one.ranks:
        assert two.header(rank) == one.header(rank)
        assert two.edges(rank) == one.edges(rank)
        assert two.ops(rank=rank) == one.ops(rank=rank)
        assert_same_rank(
            RankReader(LocalLocation(live), rank), RankReader(LocalLocation(sealed), rank)
        )


def assert_same_rank(one: RankReader, two: RankReader) -> None:
    """Rows, values, figures and statements; values in every way that readers ask for them."""
    rows = np.arange(one.committed)
    assert two.committed == one.committed
    for name in ("uid", "series", "forms", "phases", "attempts", "gaps", "edges", "state"):
        assert getattr(two.catalogue, name) == getattr(one.catalogue, name)
    again = zip(stored_records(one, rows), stored_records(two, rows), strict=True)
    for told, found in again:
        assert (found.raw is None) == (told.raw is None)
        if told.raw is not None and found.raw is not None:
            assert (found.raw.dtype, found.raw.shape) == (told.raw.dtype, told.raw.shape)
            assert found.raw.tobytes() == told.raw.tobytes()
        assert (found.summary, found.coordinates) == (told.summary, told.coordinates)
    for number in range(len(one.catalogue.series)):
        own = np.flatnonzero(one.series_ids == number)
        kept = own[one.kept(own)]
        blocks = zip(one.blocks(kept, 64), two.blocks(kept, 64), strict=True)
        assert all(a.tobytes() == b.tobytes() and m == n for (a, m), (b, n) in blocks)
        for row in kept.tolist():
            size = max(one.raw(row).nbytes // 3, 8)
            parts = zip(one.raw_blocks(row, size), two.raw_blocks(row, size), strict=True)
            assert all(a.tobytes() == b.tobytes() for a, b in parts)
