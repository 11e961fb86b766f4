"""What a Writer commits, a reader gets back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchorlib.errors import RunBusyError, RunExistsError
from anchorlib.record import Coordinates, Record
from anchorlib.store import LocalLocation, RankReader, Writer
from anchorlib.summary import summarise


def record(name: str, step: int, raw: np.ndarray, dtype: str = "float32", mode: str = "all"):
    kept = None if mode == "summary" else raw
    at = Coordinates(step)
    summary = summarise(raw, dtype)
    return Record(name, "grad", mode, at, step, step, dtype, raw.shape, kept, summary)


def reader(store: Path, run: str = "run1", rank: int = 0) -> RankReader:
    return RankReader(LocalLocation(store / f"{run}.zarr"), rank)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    records = [record("fc1", step, np.full((3, 4), step, "<f4")) for step in range(5)]
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.write(records)
        found = reader(tmp_path)
        assert found.committed == 5
        for row, one in enumerate(records):
            assert found.raw(row).tobytes() == one.raw.tobytes()


def test_a_rank_that_exists_is_not_written_again_by_accident(tmp_path: Path) -> None:
    Writer.open(tmp_path, "run1", 0).close()
    with pytest.raises(RunExistsError, match="resume"):
        Writer.open(tmp_path, "run1", 0)


def test_two_writers_never_share_a_rank(tmp_path: Path) -> None:
    with (
        Writer.open(tmp_path, "run1", 0),
        pytest.raises(RunBusyError, match="process"),
    ):
        Writer.open(tmp_path, "run1", 0, resume=True)
