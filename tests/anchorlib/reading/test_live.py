"""A run is read at every moment of its being written: by us, and by zarr-python."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zarr

from anchorlib.errors import RunNotFoundError
from anchorlib.reading import Run, open_run
from anchorlib.store import LocalLocation, RankReader
from anchorlib.summary import digest
from tests.anchorlib.store.write.test_crash import ROOT, SCRIPT, check_rows
from tests.waiting import until

pytestmark = pytest.mark.slow


@contextmanager
def writing(store: Path, seed: int) -> Iterator[None]:
    """Another process that writes batch after batch, publishing now and then."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(store), str(seed)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"o"
        try:
            yield
        finally:
            process.kill()


def grown(look: Callable[[int], int], times: int = 5) -> list[int]:
    """What each look at a run counts, which is given its number, until the run grew so often."""
    seen = [look(0)]

    def has_grown() -> bool:
        seen.append(look(len(seen)))
        return len(set(seen)) > times

    until(has_grown, seconds=120)
    return seen


def test_every_look_at_a_live_run_finds_whole_records(tmp_path: Path) -> None:
    with writing(tmp_path, seed=1):
        run = open_run("run1", tmp_path)
        # In turn a reader that is new, and one that has seen the run before.
        seen = grown(lambda at: check_listing(open_run("run1", tmp_path) if at % 2 else run))
        check_rows(RankReader(LocalLocation(tmp_path / "run1.zarr"), 0))
    assert seen == sorted(seen)


def check_listing(run: Run) -> int:
    """Reads the newest record of each tensor; returns how many records there are."""
    infos = run.tensors()
    for info in infos:
        series = run.series(info.name, info.kind, mode=info.mode)
        assert len(series) >= info.records
        newest = series.record(len(series) - 1)
        if newest.raw is not None:
            assert newest.raw.shape == newest.shape
            assert digest(newest.raw).hex() == series.columns["digest"][-1]
    return sum(info.records for info in infos)


def test_zarr_python_finds_a_valid_hierarchy_at_every_look(tmp_path: Path) -> None:
    def look(_number: int) -> int:
        rank = zarr.open_group(tmp_path / "run1.zarr" / "rank0", mode="r")
        for path, node in rank["forms"].members(max_depth=None):
            if isinstance(node, zarr.Array):
                assert node[...].shape == node.shape, path
        digests = rank["records/digest_high"][...]
        assert (digests != 0).all()
        return len(digests)

    with writing(tmp_path, seed=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = grown(look)
    assert rows == sorted(rows)


def test_a_run_that_was_just_made_is_open_and_empty(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="run1"):
        open_run("run1", tmp_path)
    with writing(tmp_path, seed=3):
        assert open_run("run1", tmp_path).state == "open"
