"""The cost of a comparison: joining a million records, reading equal values again, memory.

`anchor verify` and compare's measures read equal values again; both are compared with a plain read
pass over the same files. Where digests decide, no value is read: the time is that of the join,
whatever the size of the tensors.

    python -m benchmarks comparing
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anchorlib
from anchorlib.block import block_of
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.tables.making import table_of
from anchorlib.diagnosis.pairing.tables.table import Table, Tensor
from anchorlib.diagnosis.sizes.measurement import measure
from anchorlib.reading import open_run
from anchorlib.record import Coordinates, Record
from anchorlib.store import Writer
from anchorlib.summary import digest, summarise
from benchmarks.figures import Figure, figure
from benchmarks.peaks import peak_bytes
from benchmarks.timing import Ratio, interleaved, ratio

Array = np.ndarray[Any, Any]
MIB = 1 << 20
GIB_ELEMENTS = 256 * MIB
LONG_STEPS, LONG_RECORDS = 1000, 277


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    yield from joins()
    with tempfile.TemporaryDirectory() as folder:
        yield from passes(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield by_digests(Path(folder))
    yield memory()
    with tempfile.TemporaryDirectory() as folder:
        yield from long(Path(folder))


def joins() -> Iterator[Figure]:
    """Join the tables of two runs of a million records, with equal names and behind a prefix."""
    a, b, renamed = columns(), columns(seed=7), columns(seed=7, prefix="student.")
    arms = {"plain": lambda: align(a, b), "renamed": lambda: align(a, renamed)}
    for name, samples in interleaved(arms, rounds=3).items():
        seconds = Ratio.of([one.process for one in samples])
        yield figure(f"compare, join of 2 x 1,000,000 records, {name}: CPU", seconds, "s")


def columns(tensors: int = 1000, steps: int = 1000, *, seed: int = 0, prefix: str = "") -> Table:
    """A table of small tensors in memory, half of whose digests depend on the seed."""
    count = tensors * steps
    digests = np.random.default_rng(0).integers(0, 1 << 63, (count, 2)).astype(np.uint64)
    digests[count // 2 :] += np.uint64(seed)
    zeros = np.zeros(count, np.int64)
    known: dict[str, Array] = dict.fromkeys(("zero", "nan", "inf", "subnormal"), zeros)
    known |= dict.fromkeys(("min", "max", "sum", "l2"), np.ones(count))
    return Table(
        run="memory",
        tensors=[Tensor(f"{prefix}layer.{n}", "grad", "all", 0) for n in range(tensors)],
        phases=["train"],
        dtypes=["float32"],
        shapes=[(16,)],
        tensor=np.tile(np.arange(tensors), steps),
        step=np.repeat(np.arange(steps), tensors),
        pass_index=zeros,
        call=zeros,
        phase=zeros,
        attempt=zeros,
        order=np.arange(count),
        count=zeros + 1,
        scale=np.ones(count),
        dtype=zeros,
        shape=zeros,
        digest=digests,
        kept=np.zeros(count, bool),
        figures={**known, "numel": zeros + 16},
        edges={},
        header={},
        gaps={},
        read=lambda *_: iter(()),
    )


def stored(folder: Path, elements: int, tensors: int, steps: int, runs: str = "ab") -> None:
    """Runs of float32 tensors; the second differs from the first in last bits if it is "c"."""
    for run in runs:
        factor = np.float32(1.0 + 2.0**-23 if run == "c" else 1.0)
        with Writer.open(folder, run, 0) as writer:
            for step in range(steps):
                for n in range(tensors):
                    rng = np.random.default_rng((step, n))
                    raw = rng.standard_normal(elements, np.float32) * factor
                    writer.write_block(
                        block_of([record(f"layer.{n}", step, step * tensors + n, raw)])
                    )


def record(name: str, step: int, order: int, raw: Array) -> Record:
    """A float32 gradient."""
    summary = summarise(raw, "float32")
    return Record(
        name, "grad", "all", Coordinates(step), order, 0, "float32", raw.shape, raw, summary
    )


def passes(folder: Path) -> Iterator[Figure]:
    """128 MiB of equal values in two runs, read again in three ways."""
    stored(folder, MIB, 16, 2, "abc")
    chunks = [path for run in "ab" for path in sorted((folder / f"{run}.zarr").rglob("c.*.0"))]
    chunks = [path for path in chunks if path.parent.name == "value"]
    tables = {run: table_of(open_run(run, folder)) for run in "abc"}
    equal, other = align(tables["a"], tables["b"]), align(tables["a"], tables["c"])
    readers = [open_run(run, folder) for run in "ab"]
    buffer = bytearray(MIB)

    def plain() -> None:
        for path in chunks:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    def verified() -> None:
        for run in readers:
            reader, rows = run.rows(0)
            for row in rows.tolist():
                digest(reader.raw(row))

    arms = {
        "plain": plain,
        "verify": verified,
        "equal": lambda: measure(equal, np.arange(len(equal))),
        "differing": lambda: measure(other, other.differing),
    }
    samples = interleaved(arms, rounds=5)
    told = "equal data re-read with its digests (anchor verify) / a read pass"
    yield figure(told, ratio(samples, "plain", "verify", clock="process"), at_least=0.5)
    for name in ("equal", "differing"):
        found = ratio(samples, "plain", name, clock="process")
        yield figure(f"compare, measures of {name} pairs of 4 MiB / a read pass", found)
        rate = Ratio.of([2 * 32 * 4 * MIB / 1e9 / one.process for one in samples[name]])
        yield figure(f"compare, measures of {name} pairs of 4 MiB", rate, "GB/CPU s")


def by_digests(folder: Path) -> Figure:
    """Equal runs of 64 records each, of 4 KiB and of 4 MiB."""
    for size in (1 << 10, MIB):
        stored(folder / str(size), size, 8, 8)

    def compared(size: int) -> None:
        a, b = (table_of(open_run(run, folder / str(size))) for run in "ab")
        found = align(a, b)
        assert len(found) == 64
        assert not len(found.differing)

    arms = {"small": lambda: compared(1 << 10), "large": lambda: compared(MIB)}
    found = ratio(interleaved(arms, rounds=9), "large", "small", clock="process")
    return figure("compare by digests only, 4 MiB tensors / 4 KiB", found, at_most=1.2)


def memory() -> Figure:
    """One pair of 1 GiB, made by another process: what measuring it adds to this one's peak."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; from pathlib import Path; from benchmarks import comparing; "
        made = f"comparing.stored(Path({folder!r}), {GIB_ELEMENTS}, 1, 1, 'ac')"
        subprocess.run([sys.executable, "-c", code + made], check=True)
        told = subprocess.run(
            [sys.executable, "-c", f"{code}comparing.added(Path({folder!r}))"],
            check=True,
            capture_output=True,
            text=True,
        )
    added = float(told.stdout) / MIB
    what = "memory that a pair of 1 GiB adds to a comparison"
    return figure(what, Ratio(added, added, added), "MiB", at_most=64)


def added(folder: Path) -> None:
    """Prints the bytes by which measuring the two runs raises the peak of memory."""
    alignment = align(*(table_of(open_run(run, folder)) for run in "ac"))
    before = peak_bytes()
    measure(alignment, alignment.differing)
    print(peak_bytes() - before)


def long(folder: Path) -> Iterator[Figure]:
    """Two trainings of 1,000 steps and 277 records each that part early, compared by a process."""
    path = f"Path({str(folder)!r})"
    # Compared by another process than trained: torch alone takes half of the memory.
    for call in (f"drifting.trained({path}, {LONG_STEPS})", f"comparing.told_of_long({path})"):
        code = f"from pathlib import Path; from benchmarks import {call.split('.')[0]}; {call}"
        told = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
    seconds, peak = map(float, told.stdout.split())
    what = f"compare, {LONG_STEPS * LONG_RECORDS:,} pairs of which most differ"
    yield figure(f"{what}: CPU", Ratio(seconds, seconds, seconds), "s", at_most=5)
    yield figure(f"{what}: memory", Ratio(peak, peak, peak), "MiB", at_most=300)


def told_of_long(folder: Path) -> None:
    """Prints the CPU seconds of comparing the two, and this process' peak of memory in MiB."""
    before = time.process_time()
    found = anchorlib.compare("a", "b", store=folder)
    seconds = time.process_time() - before
    assert found.counts.matched == LONG_STEPS * LONG_RECORDS, found.counts
    assert found.counts.differing > found.counts.matched / 2, found.counts
    print(seconds, peak_bytes() / MIB)
