"""How fast stored runs are read: whole series, histograms, listings.

A series is compared with np.fromfile of the same bytes; the log2 histogram with the two lines that
a user writes (`np.histogram(np.log2(np.abs(x)))` on the whole array); a listing with the start of
the interpreter alone.

    python -m benchmarks reading
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import anchorlib
from anchorlib.block import block_of
from anchorlib.store import Writer
from anchorlib.summary import SCANS
from benchmarks.figures import Figure, figure
from benchmarks.storing import records
from benchmarks.timing import Ratio, interleaved, ratio

TENSORS = 2_000


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    with tempfile.TemporaryDirectory() as folder:
        for names, elements in ((1, 1 << 20), (1, 256)):
            yield series(Path(folder), names, elements)
        SCANS.fault = "numpy is measured first"
        yield histogram("", at_least=5)
        SCANS.fault = None
        if SCANS.load() is None:
            yield histogram(", with the extra fast", at_least=10)
        yield from listing(Path(folder))


def series(folder: Path, names: int, elements: int) -> Figure:
    """128 MiB or so of one series."""
    count = min((128 << 20) // (4 * elements), 60_000)
    every = records(names, count, elements)
    with Writer.open(folder, f"series{elements}", 0) as writer:
        for start in range(0, len(every), 1000):
            writer.write_block(block_of(every[start : start + 1000]))
    whole = folder / f"{elements}.bin"
    np.concatenate([one.raw for one in every if one.raw is not None]).tofile(whole)
    run = anchorlib.open_run(f"series{elements}", folder)

    def ours() -> None:
        run["layer.0@grad"].values()

    def plain() -> None:
        np.fromfile(whole, "<f4").reshape(-1, elements)

    samples = interleaved({"ours": ours, "plain": plain}, rounds=9)
    what = f"a series of {count} records of {4 * elements} B / np.fromfile"
    return figure(what, ratio(samples, "plain", "ours"), at_least=0.5)


def histogram(beside: str, *, at_least: float) -> Figure:
    """256 MB of gradients."""
    x = np.random.default_rng(0).standard_normal(1 << 26).astype("<f4")
    x *= 1e-4

    def users() -> None:
        with np.errstate(divide="ignore"):
            np.histogram(np.log2(np.abs(x)), bins=np.arange(-60.0, 20.0))

    def ours() -> None:
        anchorlib.log2_histogram(x)

    samples = interleaved({"ours": ours, "numpy": users}, rounds=3)
    what = f"log2 histogram of 256 MB{beside} / numpy log2 and histogram"
    why = "how fast numpy's own log2 is on this processor decides"
    return figure(what, ratio(samples, "numpy", "ours"), at_least=at_least, why=why)


def listing(folder: Path) -> Iterator[Figure]:
    """A run of 2,000 tensors, from the command line and from Python."""
    every = records(TENSORS, 5, 16)
    with Writer.open(folder, "many", 0) as writer:
        writer.write_block(block_of(every))
    command = [sys.executable, "-m", "anchor_cli", "names", "many", "--store", str(folder)]

    def started(arguments: list[str]) -> Callable[[], None]:
        return lambda: _quietly(arguments)

    arms = {"names": started(command), "python": started([sys.executable, "-c", "pass"])}
    samples = interleaved(arms, rounds=5)
    pairs = zip(samples["names"], samples["python"], strict=True)
    seconds = Ratio.of([a.wall - b.wall for a, b in pairs])
    yield figure("anchor names of 2,000 tensors, after the interpreter", seconds, "s", at_most=1)
    opened = interleaved({"open": lambda: anchorlib.open_run("many", folder).tensors()}, rounds=5)
    seconds = Ratio.of([one.wall for one in opened["open"]])
    yield figure("open_run and its listing, 2,000 tensors", seconds, "s")


def _quietly(arguments: list[str]) -> None:
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
