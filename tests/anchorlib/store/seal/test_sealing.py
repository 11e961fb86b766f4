"""A sealed rank answers every reader as the live one does, and is the same bytes each time."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.record import Record
from anchorlib.store import Writer
from tests.anchorlib.store.records import record
from tests.anchorlib.store.sealing import assert_same_run, damages, sealed_run
from tests.seeds import examples
from tests.strategies import dtype_names, storage_arrays
from tests.writing import put

FIXTURES = Path(__file__).parents[3] / "fixtures"


@st.composite
def attempts(draw: st.DrawFn) -> list[list[Record]]:
    """What one or several attempts wrote: few names, so that series interleave and come again."""
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.integers(0, 12))
        parts.append([draw(records(order)) for order in range(size)])
    return parts


@st.composite
def records(draw: st.DrawFn, order: int) -> Record:
    dtype = draw(dtype_names())
    raw = draw(storage_arrays(dtype))
    return record(
        draw(st.sampled_from(["fc1", "fc2", "Ä/ö\x1b"])),
        draw(st.integers(0, 3)),
        raw,
        kind=draw(st.sampled_from(["grad", "value"])),
        dtype=dtype,
        order=order,
        values=draw(st.booleans()),
        phase=draw(st.sampled_from(["train", "eval"])),
    )


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(attempts())
def test_a_sealed_rank_answers_as_the_live_one(parts: list[list[Record]]) -> None:
    with TemporaryDirectory() as folder:
        store = Path(folder)
        for number, part in enumerate(parts):
            with Writer.open(store, "run1", 0, resume=number > 0) as writer:
                put(writer, part)
        sealed_run(store / "run1.zarr", store / "sealed.zarr")
        assert_same_run(store / "run1.zarr", store / "sealed.zarr")
        assert damages(store / "sealed.zarr") == []


@pytest.mark.slow
def test_a_run_of_format_1_is_sealed_too(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "format1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.rmtree(tmp_path / "run1.zarr/rank3")  # which was never closed
    sealed_run(tmp_path / "run1.zarr", tmp_path / "sealed.zarr")
    assert_same_run(tmp_path / "run1.zarr", tmp_path / "sealed.zarr")
    assert damages(tmp_path / "sealed.zarr") == []
