"""What grows as runs grow: the cost of a record, the memory of a session, files in the store.

The cost of a record is compared between few and many tensors and between short and long runs; both
should be flat.

    python -m benchmarks scaling
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import anchorlib
from anchorlib.block import block_of
from anchorlib.store import Writer
from benchmarks.figures import Figure, figure
from benchmarks.peaks import peak_bytes
from benchmarks.storing import Batches, records
from benchmarks.timing import Ratio, interleaved

MIB = 1 << 20
QUEUE = 64 * MIB


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    with tempfile.TemporaryDirectory() as folder:
        yield from costs(Path(folder))
        yield from files(Path(folder))
    yield memory()


def costs(folder: Path) -> Iterator[Figure]:
    """Microseconds a record, once the series exist."""
    few, many = stepping(folder / "few", 10), stepping(folder / "many", 10_000)
    samples = interleaved({"few": few, "many": many}, rounds=5)
    pairs = zip(samples["many"], samples["few"], strict=True)
    found = Ratio.of([a.wall / b.wall for a, b in pairs])
    why = "a batch of 1,000 records is ten writes there and a thousand here"
    yield figure("cost of a record, 10,000 tensors / 10", found, at_most=1.5, why=why)
    early, late = stepping(folder / "early", 10), stepping(folder / "late", 10)
    for _ in range(100):
        late()
    samples = interleaved({"early": early, "late": late}, rounds=5)
    pairs = zip(samples["late"], samples["early"], strict=True)
    found = Ratio.of([a.wall / b.wall for a, b in pairs])
    yield figure("cost of a record, after 100,000 steps / at first", found, at_most=1.5)


def stepping(folder: Path, tensors: int) -> Callable[[], None]:
    """10,000 more records of a run that goes on."""
    writer = Writer.open(folder, "run", 0)
    steps = 10_000 // tensors
    every = records(tensors, steps, 64)
    batches: Batches = [every[start : start + 1000] for start in range(0, len(every), 1000)]
    for batch in batches:  # makes the series
        writer.write_block(block_of(batch))

    def run() -> None:
        for batch in batches:
            writer.write_block(block_of(batch))

    return run


def files(folder: Path) -> Iterator[Figure]:
    """Files of a closed run: what it begins with, and for each MiB as it grows."""
    found = float(files_of(folder / "one", 1 << 18, 10))
    yield figure(
        "files of a run of 10 records, each another tensor", Ratio(found, found, found), ""
    )
    for elements, count in ((1 << 18, 512), (1 << 14, 8192), (64, 400_000)):
        megabytes = count * elements * 4 / MIB
        found = files_of(folder / str(elements), elements, count) / megabytes
        what = f"files a MiB, 10 tensors, {megabytes:.0f} MiB of records of {4 * elements} B"
        why = "chunks of small records have 128 KiB, so that short series are read quickly"
        yield figure(what, Ratio(found, found, found), "files", at_most=1.5, why=why)


def files_of(folder: Path, elements: int, count: int) -> int:
    """The number of files of a run with so many records of ten tensors; it is removed again."""
    with Writer.open(folder, "run", 0) as writer:
        every = records(10, count // 10, elements)
        for start in range(0, len(every), 1000):
            writer.write_block(block_of(every[start : start + 1000]))
    found = sum(path.is_file() for path in folder.rglob("*"))
    shutil.rmtree(folder)
    return found


def memory() -> Figure:
    """The memory that a session adds to a process, beyond its queue's limit."""
    command = [sys.executable, "-c", "from benchmarks import scaling; scaling.grow()"]
    peaks = [
        int(subprocess.run([*command], check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    figures = Ratio.of([peak / MIB for peak in peaks])
    return figure(f"memory of a session with a queue of {QUEUE // MIB} MiB", figures, "MiB",
                  at_most=QUEUE / MIB + 64)  # fmt: skip


def grow() -> None:
    """Prints the bytes of peak memory that recording 2 GB added."""
    x = torch.from_numpy(np.ones(MIB, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        with anchorlib.start("warm", store=folder) as session:  # what importing and zarr take
            anchorlib.anchor(x, "x")
        before = peak_bytes()
        with anchorlib.start("run", store=folder, queue_bytes=QUEUE) as session:
            for _ in range(512):
                anchorlib.anchor(x, "x")
                session.step()
    print(peak_bytes() - before)
