"""The meaning of a sparse gradient, however it is stored: the sum of its values at each index.

A sparse gradient is recorded as it is stored, as `NAME:indices` and `NAME:values`. An index may
occur several times in `NAME:indices`, and the indices may have any order.
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
    """A sparse tensor whose equal indices are merged, with the sum of the values at each index.

    indices: a column for each index, ascending.
    sums: a row for each of these indices, the sum of the values at that index.
    sizes: shaped as `sums`, the sum of the absolute values, by which the rounding of the sum is
    judged.
    """

    indices: Array
    sums: Array
    sizes: Array

    def at(self, indices: Array) -> Array:
        """Return the sums at `indices`, one after the other in a flat array; 0 where none is held.

        indices: a column for each index, as in the field `indices`.
        """
        every, place = np.unique(
            np.concatenate([self.indices, indices], axis=1), axis=1, return_inverse=True
        )
        sums = np.zeros((every.shape[1], self.sums.shape[1]))
        place = place.reshape(-1)
        sums[place[: len(self.sums)]] = self.sums
        wanted: Array = sums[place[len(self.sums) :]].reshape(-1)
        return wanted


def row_of_values(table: Table, row: int) -> int | None:
    """Return the row with the values of a sparse tensor; None where it was not recorded.

    row: the row with the tensor's indices.
    """
    own = table.tensors[table.tensor[row]]
    values = own._replace(name=own.name.removesuffix(INDICES) + VALUES)
    of_values = table.where(lambda tensor: tensor == values)
    rows = np.flatnonzero(of_values & (table.step == table.step[row]))
    for place in (table.pass_index, table.call, table.phase, table.attempt):
        rows = rows[place[rows] == place[row]]
    return int(rows[0]) if len(rows) else None


def summed(table: Table, row: int) -> Sums | None:
    """Return a sparse tensor coalesced: equal indices merged, and their values summed.

    Indices at which all values are zero are left out. None where the tensor's values are not known,
    or are more than MOST_ELEMENTS. Raises StoreError where they cannot be read. row: the row of the
    tensor's indices.
    """
    row_of_sums = row_of_values(table, row)
    if row_of_sums is None or max(table.figures["numel"][[row, row_of_sums]]) > MOST_ELEMENTS:
        return None
    where, held = values(table, row), values(table, row_of_sums)
    shape = table.shapes[table.shape[row]]
    if where is None or held is None or len(shape) != 2 or not shape[1]:
        return None
    unique, at = np.unique(where.reshape(shape), axis=1, return_inverse=True)
    parts = held.reshape(shape[1], -1)
    sums, sizes = (np.zeros((unique.shape[1], parts.shape[1])) for _ in range(2))
    np.add.at(sums, at.reshape(-1), parts)
    np.add.at(sizes, at.reshape(-1), np.abs(parts))
    nonzero = sizes.any(axis=1)
    return Sums(unique[:, nonzero], sums[nonzero], sizes[nonzero])
