"""Records as capture hands them over, made of numpy arrays, and runs made of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.dtypes import DTYPES
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.store import LocalLocation, RankReader, Writer
from anchorlib.summary import summarise
from tests.writing import put

Array = np.ndarray[Any, Any]


def record(
    name: str,
    step: int,
    raw: Array,
    *,
    kind: str = "grad",
    mode: str = "all",
    dtype: str = "float32",
    order: int | None = None,
    values: bool = True,
    **coordinates: Any,
) -> Record:
    """One record; `values=False` or mode "summary" leaves its summary alone."""
    return Record(
        name=name,
        kind=kind,
        mode=mode,
        coordinates=Coordinates(step, **coordinates),
        order=step if order is None else order,
        time_ns=1_700_000_000_000_000_000 + step,
        dtype=dtype,
        shape=raw.shape,
        raw=raw if values and mode != "summary" else None,
        summary=summarise(raw, dtype),
        flags=Flag.NONE if values else Flag.VALUE_DROPPED,
    )


def floats(*values: float) -> Array:
    """A float32 vector."""
    return np.array(values, "<f4")


def filled(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Storage of any dtype with all sorts of bits in it."""
    storage = DTYPES[dtype].storage
    size = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
    if dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    data = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)
    return data.view(storage).reshape(shape)


def written(store: Path, records: Iterable[Record], run: str = "run1", rank: int = 0) -> Path:
    """A closed run with these records; returns the run's directory."""
    with Writer.open(store, run, rank) as writer:
        put(writer, list(records))
    return store / f"{run}.zarr"


def reader(store: Path, run: str = "run1", rank: int = 0) -> RankReader:
    """What was committed of one rank."""
    return RankReader(LocalLocation(store / f"{run}.zarr"), rank)


def assert_holds(found: RankReader, records: Iterable[Record]) -> None:
    """Every row is the record that was written, bit for bit, in the same order."""
    records = list(records)
    assert found.committed == len(records)
    rows = np.arange(len(records))
    assert found.shapes(rows) == [one.shape for one in records]
    assert found.dtypes(rows) == [one.dtype for one in records]
    for row, one in enumerate(records):
        entry = found.catalogue.series[int(found.series_ids[row])]
        assert (entry.name, entry.kind, entry.mode) == (one.name, one.kind, one.mode)
        assert bool(found.kept(rows[row : row + 1])[0]) == (one.raw is not None)
        if one.raw is not None:
            raw = found.raw(row)
            assert (raw.dtype, raw.shape) == (one.raw.dtype, one.shape)
            assert raw.tobytes() == one.raw.tobytes()
        assert one.summary is not None
        assert found.histograms(rows[row : row + 1])[0] == one.summary.histogram
        assert int(found.cell("step", row)) == one.coordinates.step
