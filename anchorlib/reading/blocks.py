"""Series cut into blocks, so that a query can run as parallel tasks: a task reads one block.

    plan(series) ─▶ [TaskBlock, …]     cuts a series by the sizes of its records; reads no values
    f(block)     ─▶ an answer          pure: the answer depends on the block's records alone
    over         ─▶ runs the tasks     `map` in this process, or the map of a dask cluster

A query's answer is put together from the answers for its blocks: integers are added up, lists with
an entry for each record are concatenated. So the whole answer is the same to the bit, whichever
process computed a block and in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from anchorlib.reading.series import Series, series_at
from anchorlib.store import RankHandle, packed_rows, rank_handle, unpacked_rows

__all__ = ["MapFunction", "SendableBlock", "TaskBlock", "map_blocks", "plan"]

Answer = TypeVar("Answer")
Part = TypeVar("Part")
BLOCK_BYTES = 256 << 20
ROW_BYTES = 256  # the weight of a record, beside that of its values
OPEN_BYTES = 1 << 16  # the weight of a block, beside that of its records


class MapFunction(Protocol):
    """The type of a function that applies `function` to each of `parts`, as the builtin `map` does.

    It yields the answers in the order of `parts`. Besides `map`, the map of a dask cluster
    (`anchorlib.cluster`) is such a function.
    """

    def __call__(
        self, function: Callable[[Part], Answer], parts: Iterable[Part], /
    ) -> Iterator[Answer]: ...


@dataclass(frozen=True, slots=True)
class SendableBlock:
    """A block (some records of one series) in the form in which it is sent to another process.

    pin: says how the other process finds the rank that recorded the series.
    number: the number of the series in the rank's catalogue.
    rows: row numbers in the rank's table of records, compressed by `packed_rows`.
    weight: an estimate of the work of reading the block, as a number of bytes.
    """

    pin: RankHandle
    number: int
    rows: bytes
    weight: int

    @property
    def pins(self) -> tuple[RankHandle]:
        """The ranks that the block reads, as a tuple with one entry.

        Blocks of pairs of records, which read two ranks, have a property of this name too.
        """
        return (self.pin,)

    def opened(self) -> TaskBlock:
        """Open the run in this process and return the block ready to be read.

        Raises RunNotFoundError where the run is not found, and CollectorError or StoreError where
        its collector or store cannot be read.
        """
        return TaskBlock(
            series_at(self.pin.reader(), self.number, unpacked_rows(self.rows)), self.weight
        )


@dataclass(frozen=True, slots=True)
class TaskBlock:
    """Some records of one series, which one task of a query reads.

    series: the records, as a Series.
    weight: an estimate of the work of reading the block, as a number of bytes.
    """

    series: Series
    weight: int

    def sendable(self) -> SendableBlock:
        """Return the block in a form that can be sent to another process.

        Raises UnsupportedError where the run was not opened by its name: no other process could
        find it.
        """
        reader, number, rows = self.series.stored
        return SendableBlock(rank_handle(reader), number, packed_rows(rows), self.weight)


def plan(series: Series) -> list[TaskBlock]:
    """Return a series cut, in its order, into blocks of about 256 MiB of values; reads no values.

    An empty series is one block, which is empty, too.
    """
    costs = np.cumsum(series.sizes + ROW_BYTES, dtype=np.int64)
    cuts = (np.flatnonzero(np.diff(costs // BLOCK_BYTES)) + 1).tolist()
    ends = [0, *costs.tolist()]
    return [
        TaskBlock(series.between(start, stop), ends[stop] - ends[start] + OPEN_BYTES)
        for start, stop in zip([0, *cuts], [*cuts, len(series)], strict=True)
    ]


def map_blocks(
    function: Callable[[Series], Answer], parts: Sequence[Series], over: MapFunction
) -> list[list[Answer]]:
    """Apply `function` to all blocks of some series; return a list of answers for each series.

    A block is some of a series' records, as a Series. The answers of a series stand in the order of
    its blocks.

    function: must be pure: its answer depends on the block alone.
    parts: the series.
    over: runs the tasks: `map`, or the map of a dask cluster.
    """
    plans = [plan(one) for one in parts]
    answers = over(partial(_asked, function), (block for blocks in plans for block in blocks))
    return [list(islice(answers, len(blocks))) for blocks in plans]


def _asked(function: Callable[[Series], Answer], block: TaskBlock) -> Answer:
    return function(block.series)
