"""What is asked of a run of 1,024 ranks: of sealed ones, which one index has, and of live ones.

376 series a rank (94 tensors in four kinds, summaries alone) in two steps. The sealed run is a
folder as an archive has it: an object store's requests, at most four, come on top, at some tens of
milliseconds each; a comparison needs five of each run, and some seven for each rank that it opens.
The live one is what a writer left on this disk and no reader has seen.

    python -m benchmarks ranks
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import anchorlib
from anchorlib.archive import archive_run, shelf_at
from anchorlib.block import RowBlock, block_of
from anchorlib.diagnosis import compare_digests
from anchorlib.record import Coordinates, Record
from anchorlib.report import page
from anchorlib.store import LocalLocation, Writer
from anchorlib.store.format.layout import INDEX, digests_key, rank_name, steps_key
from anchorlib.store.read import digests_bytes, object_name, steps_bytes
from anchorlib.store.read.run_figures import RunFigures
from anchorlib.store.read.run_index import index_bytes
from anchorlib.store.seal import RankFigures, StepFigures, StepPool, read_index
from anchorlib.summary import summarise
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, interleaved

RANKS, TENSORS, STEPS = 1024, 94, 2
KINDS = ("value", "grad", "delta", "updated")


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    with tempfile.TemporaryDirectory() as folder:
        live, archive = Path(folder) / "live", Path(folder) / "archive"
        recorded(live)
        sealed(live, archive)
        yield from asked("sealed", archive, "*@grad", at_most=2)
        yield from compared(archive)
        yield from drawn(archive)
        yield from asked("live", live, "blocks.0.part0.weight@grad")


def asked(
    kind: str, store: Path, tensors: str, *, at_most: float | None = None
) -> Iterator[Figure]:
    """Names and a pooled histogram, through Python and through the commands.

    Commands have the start of the interpreter and all imports on top, and no target.
    """

    def command(*arguments: str) -> Callable[[], None]:
        words = [sys.executable, "-m", "anchor_cli", *arguments, "--store", str(store), "--json"]
        return lambda: _quietly(words)

    arms = {
        "open_run and its listing": lambda: anchorlib.open_run("job", store).tensors(),
        "open_run and a pooled histogram": lambda: anchorlib.open_run("job", store).histogram(
            tensors
        ),
        "anchor names": command("names", "job"),
        "anchor hist": command("hist", "job", "--tensor", tensors),
    }
    samples = interleaved(arms, rounds=3)
    for name, taken in samples.items():
        seconds = Ratio.of([one.wall for one in taken])
        bound = None if name.startswith("anchor") else at_most
        yield figure(f"{name}, {RANKS:,} {kind} ranks", seconds, "s", at_most=bound)


def compared(store: Path) -> Iterator[Figure]:
    """What a comparison with an equal run costs: what is known beforehand, and the whole answer."""

    def runs() -> tuple[anchorlib.Run, anchorlib.Run]:
        return anchorlib.open_run("job", store), anchorlib.open_run("job", store)

    arms = {
        "which ranks differ, and since when": lambda: compare_digests(*runs()),
        "the comparison": lambda: anchorlib.compare(*runs()),
    }
    for name, taken in interleaved(arms, rounds=3).items():
        seconds = Ratio.of([one.wall for one in taken])
        yield figure(f"{name}, {RANKS:,} sealed ranks", seconds, "s")


def drawn(store: Path) -> Iterator[Figure]:
    """What the page costs: it opens one rank."""
    arms = {"the page": lambda: page([anchorlib.open_run("job", store)])}
    for name, taken in interleaved(arms, rounds=3).items():
        seconds = Ratio.of([one.wall for one in taken])
        yield figure(f"{name}, {RANKS:,} sealed ranks", seconds, "s")


def recorded(store: Path) -> None:
    """A run of many ranks, closed."""
    block = block_of(list(_records()))
    for rank in range(RANKS):
        _write(store, rank, block)


def sealed(live: Path, archive: Path) -> None:
    """The run as an archive has it: its first rank in full, of the others what makes them listed.

    The index is that of all of them, and so are the digests: names, histograms and what is known
    before a comparison ask for nothing else.
    """
    one = live.parent / "one"
    (one / "job.zarr").mkdir(parents=True)
    shutil.copytree(live / "job.zarr" / rank_name(0), one / "job.zarr" / rank_name(0))
    archive_run(one, "job", shelf_at(str(archive)))
    run = archive / "job.zarr"
    first = read_index(LocalLocation(run), 0)
    assert first is not None
    for rank in range(1, RANKS):
        (run / rank_name(rank)).mkdir()
    merged = RunFigures.of(replace(first, rank=rank) for rank in range(RANKS))
    assert first.digests is not None
    digests = digests_bytes(dict.fromkeys(range(RANKS), first.digests))
    (run / digests_key(object_name(digests))).write_bytes(digests)
    steps = steps_bytes(_together(first))
    (run / steps_key(object_name(steps))).write_bytes(steps)
    named = replace(merged, digests=object_name(digests), by_step=object_name(steps))
    (run / INDEX).write_bytes(index_bytes(named))


def _together(first: RankFigures) -> StepFigures:
    """The figures of the steps of all ranks, each of which recorded what the first one did."""
    pool = StepPool()
    assert first.by_step is not None
    for rank in range(RANKS):
        lines = tuple(replace(line, ranks=(rank,)) for line in first.by_step.lines)
        pool.add(replace(first.by_step, ranks=(rank,), lines=lines))
    total = pool.total()
    assert total is not None
    return total


def _write(store: Path, rank: int, block: RowBlock) -> None:
    with Writer.open(store, "job", rank) as writer:
        writer.write_block(block)


def _records() -> Iterator[Record]:
    order = 0
    random = np.random.default_rng(0)
    for step in range(STEPS):
        for kind in KINDS:
            for number in range(TENSORS):
                raw = (random.standard_normal(4096) * 2.0 ** (number % 30 - 15)).astype("<f4")
                yield Record(
                    f"blocks.{number // 9}.part{number % 9}.weight", kind, "summary",
                    Coordinates(step), order, 0, "float32", raw.shape, None,
                    summarise(raw, "float32"),
                )  # fmt: skip
                order += 1


def _quietly(arguments: list[str]) -> None:
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
