"""How fast the store takes records, beside plain files and zarr's own append in the same run.

    python benchmarks/store.py [DIRECTORY]

Wall figures of a shared machine move by a factor of two and more: compare the ratios, best of five.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zarr

from anchorlib.record import Coordinates, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise

Batches = list[list[Record]]
REPEATS = 5


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
    folder.mkdir()
    for number, record in enumerate(record for batch in batches for record in batch):
        assert record.raw is not None
        with (folder / str(number)).open("wb", buffering=0) as file:
            file.write(record.raw.data)


def ours(folder: Path, batches: Batches) -> None:
    """The store's writer, and a close that publishes everything."""
    with Writer.open(folder, "run", 0) as writer:
        for batch in batches:
            writer.write(batch)


def appended(folder: Path, batches: Batches) -> None:
    """zarr-python: resize and assign for each record of one tensor."""
    first = batches[0][0]
    array = zarr.create_array(
        folder, shape=(0, *first.shape), chunks=(1, *first.shape), dtype="f4", compressors=None
    )
    for row, record in enumerate(record for batch in batches for record in batch):
        array.resize((row + 1, *first.shape))
        array[row] = record.raw


def seconds(
    root: Path, write: Callable[[Path, list[list[Record]]], None], batches: object
) -> float:
    """The best of `REPEATS` runs, each into a directory of its own."""
    best = float("inf")
    for repeat in range(REPEATS):
        folder = root / f"{write.__name__}{repeat}{os.urandom(3).hex()}"
        start = time.perf_counter()
        write(folder, batches)
        best = min(best, time.perf_counter() - start)
        shutil.rmtree(folder)
    return best


def main(where: str | None = None) -> None:
    """Prints a line for each size."""
    root = Path(tempfile.mkdtemp(dir=where))
    try:
        for names, batch, elements, count in (
            (1, 1000, 100, 20_000),
            (300, 300, 100, 30_000),
            (300, 1, 100, 3_000),
            (10, 10, 16_384, 1_000),
            (1, 1, 1 << 20, 32),
        ):
            every = records(names, count // names, elements)
            batches = [every[start : start + batch] for start in range(0, len(every), batch)]
            few = [batch[:1] for batch in batches[:100]]
            mine = seconds(root, ours, batches)
            files = seconds(root, plain, batches)
            zarrs = seconds(root, appended, few) * len(every) / len(few)
            nbytes = len(every) * elements * 4
            print(
                f"{elements * 4:>8} B x {len(every):>6}, {names:>3} tensors, {batch:>4} a batch: "
                f"{len(every) / mine:>9,.0f} records/s  {nbytes / mine / 1e9:5.2f} GB/s  "
                f"plain files x {files / mine:6.2f}  zarr append x {zarrs / mine:6.1f}",
                flush=True,
            )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main(*sys.argv[1:])
