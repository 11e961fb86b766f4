"""What a sparse gradient means: the sum of its values at each index.

It is recorded as `NAME:indices` and `NAME:values`, as it is stored: an index may stand there
several times, and in any order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Table

__all__ = ["INDICES", "VALUES", "Sums", "row_of_values", "summed"]

Array = np.ndarray[Any, Any]
INDICES, VALUES = ":indices", ":values"
MOST_ELEMENTS = 1 << 22


class Sums(NamedTuple):
    """A sparse tensor coalesced: its indices in order, the sum at each, and of the terms' sizes."""

    indices: Array
    sums: Array
    sizes: Array

    def at(self, indices: Array) -> Array:
        """The sums at these indices, flat; zeros where the tensor has none."""
        every, place = np.unique(
            np.concatenate([self.indices, indices], axis=1), axis=1, return_inverse=True
        )
        found = np.zeros((every.shape[1], self.sums.shape[1]))
        place = place.reshape(-1)
        found[place[: len(self.sums)]] = self.sums
        told: Array = found[place[len(self.sums) :]].reshape(-1)
        return told


def row_of_values(table: Table, row: int) -> int | None:
    """The row with the values of the sparse tensor whose indices are in a row; None without one."""
    own = table.tensors[table.tensor[row]]
    name = own.name.removesuffix(INDICES) + VALUES
    same = [n for n, one in enumerate(table.tensors) if one == own._replace(name=name)]
    rows = np.flatnonzero(np.isin(table.tensor, same) & (table.step == table.step[row]))
    for place in (table.pass_index, table.call, table.phase, table.attempt):
        rows = rows[place[rows] == place[row]]
    return int(rows[0]) if len(rows) else None


def summed(table: Table, row: int) -> Sums | None:
    """The sparse tensor whose indices are in a row; None where its values are not known.

    Raises StoreError where they cannot be read.
    """
    beside = row_of_values(table, row)
    if beside is None or max(table.figures["numel"][[row, beside]]) > MOST_ELEMENTS:
        return None
    where, held = values(table, row), values(table, beside)
    shape = table.shapes[table.shape[row]]
    if where is None or held is None or len(shape) != 2 or not shape[1]:
        return None
    unique, at = np.unique(where.reshape(shape), axis=1, return_inverse=True)
    parts = held.reshape(shape[1], -1)
    sums, sizes = (np.zeros((unique.shape[1], parts.shape[1])) for _ in range(2))
    np.add.at(sums, at.reshape(-1), parts)
    np.add.at(sizes, at.reshape(-1), np.abs(parts))
    some = sizes.any(axis=1)
    return Sums(unique[:, some], sums[some], sizes[some])
