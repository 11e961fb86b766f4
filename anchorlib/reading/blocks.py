"""Blocks: a block is what one task of a query reads, some records of one series.

    plan(series) ─▶ [TaskBlock, …]     made from columns alone
    f(series)    ─▶ an answer          pure: it depends on the records of the block alone
    over         ─▶ runs the tasks     `map` in this process, or the map of a cluster

Answers of blocks are added up as integers, or put one behind another, an entry a record. So the
whole answer is the same to the bit, whichever process computed a block and in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from anchorlib.reading.series import Series, series_at
from anchorlib.store import Pin, packed_rows, pin_of, told_rows

__all__ = ["FarBlock", "Over", "TaskBlock", "plan", "spread"]

Answer = TypeVar("Answer")
Part = TypeVar("Part")
BLOCK_BYTES = 256 << 20
ROW_BYTES = 256  # the weight of a record, beside that of its values
OPEN_BYTES = 1 << 16  # the weight of a block, beside that of its records


class Over(Protocol):
    """Applies a function to each part; the answers come in the order of the parts."""

    def __call__(
        self, function: Callable[[Part], Answer], parts: Iterable[Part], /
    ) -> Iterator[Answer]: ...


@dataclass(frozen=True, slots=True)
class FarBlock:
    """A block as another process can be told of it: names and numbers instead of open files.

    pin: how the process finds the rank. number: of the series in its rank's catalogue.
    rows: row numbers in the rank's table, packed. weight: see `TaskBlock`.
    """

    pin: Pin
    number: int
    rows: bytes
    weight: int

    @property
    def pins(self) -> tuple[Pin]:
        """The ranks that the block reads: one."""
        return (self.pin,)

    def near(self) -> TaskBlock:
        """The block with its records opened in this process; raises as `Pin.reader`."""
        return TaskBlock(
            series_at(self.pin.reader(), self.number, told_rows(self.rows)), self.weight
        )


@dataclass(frozen=True, slots=True)
class TaskBlock:
    """Records of one series that one task reads.

    weight: about how much work that is, in bytes to read.
    """

    series: Series
    weight: int

    def far(self) -> FarBlock:
        """The block for another process; raises UnsupportedError where that cannot find the run."""
        reader, number, rows = self.series.stored
        return FarBlock(pin_of(reader), number, packed_rows(rows), self.weight)


def plan(series: Series) -> list[TaskBlock]:
    """Cuts a series, in its order, into blocks of about 256 MiB; there is one block at least."""
    costs = np.cumsum(series.sizes + ROW_BYTES, dtype=np.int64)
    cuts = (np.flatnonzero(np.diff(costs // BLOCK_BYTES)) + 1).tolist()
    ends = [0, *costs.tolist()]
    return [
        TaskBlock(series.between(start, stop), ends[stop] - ends[start] + OPEN_BYTES)
        for start, stop in zip([0, *cuts], [*cuts, len(series)], strict=True)
    ]


def spread(
    function: Callable[[Series], Answer], parts: Sequence[Series], over: Over
) -> list[list[Answer]]:
    """The answers of `function`, which must be pure, for the blocks of each series, in order."""
    plans = [plan(one) for one in parts]
    answers = over(partial(_asked, function), (block for blocks in plans for block in blocks))
    return [list(islice(answers, len(blocks))) for blocks in plans]


def _asked(function: Callable[[Series], Answer], block: TaskBlock) -> Answer:
    return function(block.series)
