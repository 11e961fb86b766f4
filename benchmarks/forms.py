"""Many series, one record of each between flushes: the store's time per record, and its files.

    python -m benchmarks forms

CPU of the thread that writes and publishes, as the best of several flushes; the block is made
before. A run of few shapes and one of many, and the first flush, which makes all series.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anchorlib.block import COLUMNS, RowBlock, Tables
from anchorlib.store import Writer
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio

SHAPES = [(8, 8), (64,), (16, 16), (10, 10), (128,), (32, 8), (256,), (1,), (4, 4), (100,)]
FLUSHES = 5
ROWS = 4096  # a block


def tables(series: int, shapes: int) -> Tables:
    """Definitions of so many series, going round so many shapes."""
    every = (SHAPES + [(7 + n, 3) for n in range(shapes)])[:shapes]
    names = [(f"model.layers.{n}.h", "value", "all") for n in range(series)]
    layouts = [("float32", shape) for shape in every]
    return Tables(names, layouts, [4 * int(np.prod(shape)) for shape in every], ["train"])


def block(tables: Tables, first: int, step: int, order: int) -> RowBlock:
    """One record of up to `ROWS` series, from series `first` on."""
    series = np.arange(first, min(first + ROWS, len(tables.series)))
    rows, layout = len(series), series % len(tables.layouts)
    sizes = np.array(tables.sizes)[layout]
    starts = np.cumsum((sizes + 63) & -64) - ((sizes + 63) & -64)
    payload = np.random.default_rng(step).standard_normal(int(starts[-1] + sizes[-1]) // 4 + 16)
    columns = {name: np.zeros(rows, dtype) for name, dtype in COLUMNS.items()}
    columns |= {"series": series, "layout": layout, "step": np.full(rows, step)}
    columns |= {"order": np.arange(order, order + rows), "count": np.ones(rows, np.uint64)}
    columns["bins"] += 8
    return RowBlock(
        tables,
        columns,
        np.zeros((rows, 2), ">u8"),
        np.ones(rows, bool),
        [memoryview(payload.astype("<f4").tobytes())],
        np.zeros(rows, np.int64),
        starts,
        np.tile(np.arange(8, dtype="<i2"), rows),
        np.ones(8 * rows, np.uint64),
    )


def flushes(folder: Path, series: int, shapes: int) -> tuple[list[float], int]:
    """CPU seconds a record of each flush, and how many files and directories there are."""
    defined = tables(series, shapes)
    costs = []
    with Writer.open(folder, "run", 0) as writer:
        for step in range(FLUSHES):
            blocks = [
                block(defined, first, step, step * series + first)
                for first in range(0, series, ROWS)
            ]
            since = time.thread_time()
            for one in blocks:
                writer.write_block(one)
            writer.publish()
            costs.append((time.thread_time() - since) / series)
            if step == 1:
                inodes = sum(len(files) + len(below) for _, below, files in os.walk(folder))
    return costs, inodes


def figures() -> Iterator[Figure]:
    """3,000 and 10,000 series of 10 and 500 shapes."""
    with tempfile.TemporaryDirectory() as folder:
        for series, shapes in ((3_000, 10), (10_000, 10), (10_000, 500)):
            costs, inodes = flushes(Path(folder, f"{series}-{shapes}"), series, shapes)
            what = f"{series:,} series of {shapes} shapes, a record a flush"
            first, later = 1e6 * costs[0], [1e6 * cost for cost in costs[1:]]
            few = shapes == 10
            yield figure(f"{what}: first flush", Ratio.of([first]), "µs/record", at_most=30)
            told = Ratio.of([min(later)])
            yield figure(f"{what}: later", told, "µs/record", at_most=5 if few else None)
            yield figure(f"{what}: inodes of 2 steps", Ratio.of([inodes]), "", at_most=1_000)
