"""The records of a table in blocks of one rank, phase and step; most blocks share a layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Table

__all__ = ["Blocks", "blocks_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a table: all records of one rank, phase and step are a block.

    rows: row numbers of the table, block after block; inside a block by tensor, pass and call.
    starts: where each block begins in `rows`, and the end of the last.
    rank, phase, step: those of each block. attempt: the last attempt that recorded in the block.
    layout: the number of each block's layout, from 0. Blocks of one layout hold equal tensors
        at equal passes and calls in equal shapes, and have equal edges.
    example: one block of each layout.
    """

    rows: Array
    starts: Array
    rank: Array
    phase: Array
    step: Array
    attempt: Array
    layout: Array
    example: list[int]

    def __len__(self) -> int:
        return len(self.rank)

    def rows_of(self, block: int) -> Array:
        """Return the rows, in the table, of one block's records."""
        rows: Array = self.rows[self.starts[block] : self.starts[block + 1]]
        return rows

    def find(self, rank: Array, phase: Array, step: Array) -> Array:
        """Return, for each rank, phase and step, the number of its block; -1 where there is none.

        rank, phase, step: one entry each for every block sought. A phase is its index in the table.
        """
        keys = _packed(self.rank, self.phase, self.step)
        wanted = _packed(rank, phase, step)
        if not len(keys):
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((keys[at] == wanted) & (step >= 0), at, -1)


def blocks_of(table: Table, epoch: Callable[[int, Array], Array]) -> Blocks:
    """Return the blocks of a table: the records of each rank, phase and step.

    epoch: a function of a rank and an array of steps. It returns, for each of the steps, how many
        times the rank had stated new edges by then.
    """
    rank = table.rank
    keys = (rank, table.phase, table.step, table.tensor, table.pass_index, table.call)
    order = np.lexsort(keys[::-1])
    key = _packed(rank, table.phase, table.step)[order]
    new = np.flatnonzero(np.r_[True, key[1:] != key[:-1]]) if len(key) else np.empty(0, np.int64)
    first = order[new]
    rank, phase, step = rank[first], table.phase[first], table.step[first]
    attempt = np.maximum.reduceat(table.attempt[order], new) if len(new) else new
    epochs = np.zeros(len(first), np.int64)
    for number in np.unique(rank).tolist():
        epochs[rank == number] = epoch(number, step[rank == number])
    starts = np.r_[new, len(order)]
    layout, example = _layouts(table, order, starts, np.stack([phase, attempt, epochs], 1))
    return Blocks(order, starts, rank, phase, step, attempt, layout, example)


def _layouts(table: Table, order: Array, starts: Array, heads: Array) -> tuple[Array, list[int]]:
    """Return the number of each block's layout, and one block of each layout as an example.

    order, starts: the table's rows, block after block, and where each block begins among them.
    heads: (phase, attempt, epoch) of each block, by which layouts differ too.
    """
    columns = (table.tensor, table.pass_index, table.call, table.shape)
    body = np.stack([column[order] for column in columns], 1)
    known: dict[bytes, int] = {}
    layout = np.empty(len(heads), np.int64)
    example: list[int] = []
    for block in range(len(heads)):
        part = body[starts[block] : starts[block + 1]].tobytes() + heads[block].tobytes()
        number = layout[block] = known.setdefault(part, len(known))
        if number == len(example):
            example.append(block)
    return layout, example


def _packed(rank: Array, phase: Array, step: Array) -> Array:
    """Return one number for each entry, which sorts as (rank, phase, step) do.

    Phases and ranks are few, and steps below 2**40, so that the three fit into 64 bits.
    """
    packed: Array = (rank.astype(np.int64) << 48) + (phase.astype(np.int64) << 40) + step
    return packed
