"""How fast the store takes records, beside plain files and zarr's own append in the same run.

    python -m benchmarks storing

Our figures include opening the run and the close that publishes everything.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zarr

from anchorlib.block import block_of
from anchorlib.record import Coordinates, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, interleaved, ratio

Batches = list[list[Record]]
MIB = 1 << 20


def records(names: int, steps: int, elements: int) -> list[Record]:
    """Float32 gradients, step by step through all tensors."""
    raw = np.random.default_rng(0).standard_normal(elements).astype("<f4")
    summary = summarise(raw, "float32")
    return [
        Record(
            f"layer.{n}", "grad", "all", Coordinates(step), step * names + n, 0,
            "float32", raw.shape, raw, summary,
        )
        for step in range(steps)
        for n in range(names)
    ]  # fmt: skip


def plain(folder: Path, batches: Batches) -> None:
    """Each record a file of its own, nothing else."""
    folder.mkdir(parents=True)
    for number, record in enumerate(record for batch in batches for record in batch):
        assert record.raw is not None
        with (folder / str(number)).open("wb", buffering=0) as file:
            file.write(record.raw.data)


def ours(folder: Path, batches: Batches) -> None:
    """The store's writer, and a close that publishes everything."""
    with Writer.open(folder, "run", 0) as writer:
        for batch in batches:
            writer.write_block(block_of(batch))


def appended(folder: Path, batches: Batches) -> None:
    """zarr-python: resize and assign for each record of one tensor."""
    first = batches[0][0]
    array = zarr.create_array(
        folder, shape=(0, *first.shape), chunks=(1, *first.shape), dtype="f4", compressors=None
    )
    for row, record in enumerate(record for batch in batches for record in batch):
        array.resize((row + 1, *first.shape))
        array[row] = record.raw


def figures() -> Iterator[Figure]:
    """Records of several sizes, against plain files and zarr's append."""
    with tempfile.TemporaryDirectory() as folder:
        for names, batch, elements, count in (
            (300, 300, 100, 30_000),
            (300, 1, 100, 3_000),
            (10, 10, 16_384, 1_000),
            (1, 1, 1 << 20, 32),
            (1, 1, 1 << 24, 4),
        ):
            yield from of_size(Path(folder), names, batch, elements, count)


def of_size(folder: Path, names: int, batch: int, elements: int, count: int) -> Iterator[Figure]:
    """The figures of one size of record."""
    every = records(names, count // names, elements)
    batches = [every[start : start + batch] for start in range(0, len(every), batch)]
    few = [batch[:1] for batch in batches[:100]]
    arms = {"ours": batches, "plain": batches, "appended": few}
    writers = {"ours": ours, "plain": plain, "appended": appended}

    def arm(name: str) -> Callable[[], None]:
        return lambda: writers[name](folder / os.urandom(6).hex(), arms[name])

    samples = interleaved({name: arm(name) for name in arms}, rounds=7)
    shutil.rmtree(folder)
    nbytes = elements * 4
    size = f"{nbytes} B" if nbytes < MIB else f"{nbytes // MIB} MiB"
    what = f"embedded store, {size} records, {batch} a batch"
    rates = [len(every) / one.wall for one in samples["ours"]]
    small = nbytes < 1000
    at_least = 100_000 if small and batch > 1 else None
    why = "4,200 files and directories are made for 300 series, which a longer run outweighs"
    yield figure(f"{what}: rate", Ratio.of(rates), "records/s", at_least=at_least, why=why)
    found = ratio(samples, "plain", "ours")
    bound = 0.6 if nbytes >= 4 * MIB else None
    yield figure(f"{what} / plain files", found, at_least=bound, why="new pages of the cache")
    found = ratio(samples, "appended", "ours").scaled(len(every) / len(few))
    bound = 2 if nbytes >= 4 * MIB else 50 if small and batch > 1 else None
    why = "both put the same bytes into new pages of the cache, as the plain files do"
    yield figure(f"{what} / zarr assignment", found, at_least=bound, why=why)
