"""What one task of a query reads: some records of one series.

    plan(series) ─▶ [Block, …]         made from columns alone
    f(series)    ─▶ an answer          pure: it depends on these records alone
    over         ─▶ who asks           `map` in this process, or a cluster's

Answers are added up as integers, or stand beside one another, an entry a record. The whole is
therefore the same to the bit, whoever computed which part of it and in whatever order.
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

__all__ = ["Block", "FarBlock", "Over", "plan", "spread"]

Answer = TypeVar("Answer")
Part = TypeVar("Part")
BLOCK_BYTES = 256 << 20
ROW_BYTES = 256  # what looking at a record costs beside its values
OPEN_BYTES = 1 << 16  # what a block costs, however little it reads


class Over(Protocol):
    """Answers of parts, in the order of the parts, as the builtin `map` gives them."""

    def __call__(
        self, function: Callable[[Part], Answer], parts: Iterable[Part], /
    ) -> Iterator[Answer]: ...


@dataclass(frozen=True, slots=True)
class FarBlock:
    """Records of one series, by words that any process understands.

    number: of the series in its rank's catalogue.
    rows: of the rank's table, packed.
    """

    pin: Pin
    number: int
    rows: bytes
    weight: int

    @property
    def pins(self) -> tuple[Pin]:
        """The rank."""
        return (self.pin,)

    def near(self) -> Block:
        """The same records, opened in this process; raises as `Pin.reader`."""
        return Block(series_at(self.pin.reader(), self.number, told_rows(self.rows)), self.weight)


@dataclass(frozen=True, slots=True)
class Block:
    """Records of one series that are read together.

    weight: about how much work they are, in bytes that are read.
    """

    series: Series
    weight: int

    def far(self) -> FarBlock:
        """It for another process; raises UnsupportedError where that cannot find the run."""
        reader, number, rows = self.series.stored
        return FarBlock(pin_of(reader), number, packed_rows(rows), self.weight)


def plan(series: Series) -> list[Block]:
    """The series in its own order, in blocks of about 256 MiB; one at least."""
    costs = np.cumsum(series.sizes + ROW_BYTES, dtype=np.int64)
    cuts = (np.flatnonzero(np.diff(costs // BLOCK_BYTES)) + 1).tolist()
    ends = [0, *costs.tolist()]
    return [
        Block(series.between(start, stop), ends[stop] - ends[start] + OPEN_BYTES)
        for start, stop in zip([0, *cuts], [*cuts, len(series)], strict=True)
    ]


def spread(
    function: Callable[[Series], Answer], parts: Sequence[Series], over: Over
) -> list[list[Answer]]:
    """What `function` says of the blocks of each series, in order; it must be pure."""
    plans = [plan(one) for one in parts]
    answers = over(partial(_asked, function), (block for blocks in plans for block in blocks))
    return [list(islice(answers, len(blocks))) for blocks in plans]


def _asked(function: Callable[[Series], Answer], block: Block) -> Answer:
    return function(block.series)
