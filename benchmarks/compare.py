"""What a comparison costs: joining a million records, measuring pairs, memory for a large one.

    python benchmarks/compare.py [join | tables | speed | small | memory]…

Each part runs in a process of its own, so that its peak of memory is its own. Times are
of the processor, best of three: wall figures of a shared machine move by a factor of two and more.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.diagnosis.aligning import align
from anchorlib.diagnosis.measuring import measure
from anchorlib.diagnosis.table import Table, Tensor
from anchorlib.diagnosis.tabling import table_of
from anchorlib.reading import open_run
from anchorlib.record import Coordinates, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise

Array = np.ndarray[Any, Any]
MIB = 1 << 20
REPEATS = 3


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    """The best of a few, seconds, and what it gave."""
    best, found = np.inf, None
    for _ in range(REPEATS):
        start = time.process_time()
        found = what()
        best = min(best, time.process_time() - start)
    return best, found


def peak() -> float:
    """MiB that the process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def record(name: str, step: int, order: int, raw: Array) -> Record:
    """A float32 gradient."""
    summary = summarise(raw, "float32")
    return Record(
        name, "grad", "all", Coordinates(step), order, 0, "float32", raw.shape, raw, summary
    )


def columns(tensors: int, steps: int, seed: int = 0, prefix: str = "") -> Table:
    """A table of small tensors in memory, half of whose digests depend on the seed."""
    count = tensors * steps
    digest = np.random.default_rng(0).integers(0, 1 << 63, (count, 2)).astype(np.uint64)
    digest[count // 2 :] += np.uint64(seed)
    zeros = np.zeros(count, np.int64)
    figures = dict.fromkeys(("zero", "nan", "inf", "subnormal"), zeros)
    figures |= dict.fromkeys(("min", "max", "sum", "l2"), np.ones(count))
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
        dtype=zeros,
        shape=zeros,
        digest=digest,
        kept=np.zeros(count, bool),
        figures={**figures, "numel": zeros + 16},
        edges={},
        header={},
        gaps={},
        read=lambda *_: iter(()),
    )


def join() -> None:
    """A million records a run: tables joined, plainly and with all names behind a prefix."""
    a = columns(1000, 1000)
    for prefix in ("", "student."):
        seconds, found = timed(lambda p=prefix: align(a, columns(1000, 1000, 7, p)))
        print(f"join of 2 x {len(a):,} records{' renamed' * bool(prefix)}: {seconds:.2f} s")
        assert len(found) == len(a)
    alignment = align(a, columns(1000, 1000, 7))
    seconds, _ = timed(lambda: measure(alignment, alignment.differing))
    print(f"bounds of {len(alignment.differing):,} pairs without values: {seconds:.2f} s")


def tables() -> None:
    """The columns of a stored run of 200,000 summaries."""
    with tempfile.TemporaryDirectory() as folder:
        one = record("x", 0, 0, np.ones(16, "<f4"))
        with Writer.open(Path(folder), "a", 0) as writer:
            for step in range(200):
                writer.write(
                    [
                        replace(
                            one,
                            name=f"layer.{n}",
                            coordinates=Coordinates(step),
                            order=1000 * step + n,
                            raw=None,
                        )
                        for n in range(1000)
                    ]
                )
        seconds, found = timed(lambda: table_of(open_run("a", folder)))
        print(f"table of {len(found):,} stored records: {seconds:.2f} s")


def stored(folder: Path, sizes: dict[str, int], steps: int) -> None:
    """Two runs whose tensors differ in their last bits."""
    for run, factor in (("a", 1.0), ("b", 1.0 + 2.0**-23)):
        with Writer.open(folder, run, 0) as writer:
            for step in range(steps):
                for n, (name, size) in enumerate(sizes.items()):
                    rng = np.random.default_rng((step, n))
                    raw = rng.standard_normal(size, np.float32) * np.float32(factor)
                    writer.write([record(name, step, step * len(sizes) + n, raw)])


def measured(folder: Path) -> Iterator[str]:
    """Table, join and measures of the two runs, with their times."""
    start = time.process_time()
    a, b = (table_of(open_run(run, folder)) for run in "ab")
    yield f"tables {time.process_time() - start:.2f} s"
    alignment = align(a, b)
    start = time.process_time()
    found = measure(alignment, alignment.differing)
    seconds = time.process_time() - start
    nbytes = 2 * 4 * int(found["numel"].sum())
    yield f"{len(found):,} differing pairs, {nbytes / 1e9:.2f} GB of both: {seconds:.2f} s"
    yield f"{nbytes / 1e9 / seconds:.2f} GB/s, {seconds / len(found) * 1e6:.0f} us a pair"


def speed() -> None:
    """Pairs of 4 MiB."""
    with tempfile.TemporaryDirectory() as folder:
        stored(Path(folder), {f"layer.{n}": MIB for n in range(16)}, 4)
        print("pairs of 4 MiB:", *measured(Path(folder)), sep="\n  ")


def small() -> None:
    """Pairs of 64 elements."""
    with tempfile.TemporaryDirectory() as folder:
        stored(Path(folder), {f"layer.{n}": 64 for n in range(100)}, 100)
        print("pairs of 256 bytes:", *measured(Path(folder)), sep="\n  ")


def memory() -> None:
    """One pair of 1 GiB, made by another process."""
    with tempfile.TemporaryDirectory() as folder:
        made = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import compare; "
        made += f"compare.stored(compare.Path({folder!r}), dict(x=256 * compare.MIB), 1)"
        subprocess.run([sys.executable, "-c", made], check=True)
        a, b = (table_of(open_run(run, folder)) for run in "ab")
        alignment = align(a, b)
        before = peak()
        found = measure(alignment, alignment.differing)
        print(f"a pair of 1 GiB: {peak() - before:.0f} MiB beside the {before:.0f} MiB held before")
        print(f"  error {found['error_eps'][0]:.3f} eps")


PARTS = {part.__name__: part for part in (join, tables, speed, small, memory)}


def main() -> None:
    """The parts that are named, or all, each in a process of its own."""
    if sys.argv[1:2] == ["--here"]:
        PARTS[sys.argv[2]]()
        return
    for name in sys.argv[1:] or PARTS:
        subprocess.run([sys.executable, __file__, "--here", name], check=True)


if __name__ == "__main__":
    main()
