"""The order of the samples of a pass: where one run has each of the other run's samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["Order", "Orders", "Pass", "call_of", "pass_of", "wide"]

Array = np.ndarray[Any, Any]


class Order(NamedTuple):
    """Where B has each of A's samples.

    places: the index in B of each of A's samples.
    alike: a number for each of A's samples. Samples with one number have equal rows, but for
        rounding, in the records from which the order was read, so that their places among
        themselves are not known.
    """

    places: Array
    alike: Array

    def settled(self, rows_a: Array, rows_b: Array) -> Order:
        """Return the order, with alike samples told apart by the rows of one more record.

        rows_a, rows_b: A's and B's record, (samples, elements), each in its own order. Among alike
            samples A's and B's rows are paired by rank along one random direction: rows that are
            nearly equal in both runs have nearly equal places along it.
        """
        direction = np.random.default_rng(0).standard_normal(rows_a.shape[1])
        # Not a matrix product: that may round equal rows differently, depending on their places.
        mine, other = (
            (np.nan_to_num(rows) * direction).sum(axis=1) for rows in (rows_a, rows_b[self.places])
        )
        by_rank, theirs = np.lexsort((mine, self.alike)), np.lexsort((other, self.alike))
        mine, other, groups = mine[by_rank], other[theirs], self.alike[by_rank]
        # Samples that are nearer to one another than A's and B's rows are remain alike.
        apart = np.diff(mine) > 2 * np.abs(mine - other).max(initial=0.0)
        ends = apart | (np.diff(groups) != 0)
        places, alike = np.empty_like(self.places), np.empty_like(self.alike)
        places[by_rank] = self.places[theirs]
        alike[by_rank] = np.concatenate((np.zeros(1, np.int64), np.cumsum(ends)))
        return Order(places, alike)

    def of_parts(self, size: int) -> Iterator[Array]:
        """Yield each distinct order within a part of the samples, for parts of `size` samples.

        A model may be called once with the samples of several batches, one batch after the other,
        such as chosen and rejected answers. A record of one such batch has the order of that part,
        as indices within the part. Nothing is yielded if B has any sample of one part in another
        part.
        """
        parts = self.places.reshape(-1, size)
        within = parts - size * np.arange(len(parts))[:, None]
        if (within < 0).any() or (within >= size).any():
            return
        yield from np.unique(within, axis=0)

    def of_groups(self, size: int) -> Iterator[Array]:
        """Yield the order of `size` groups that equally many samples belong to.

        A model may be called once with all steps of several episodes. A record with one row for
        each episode has the order of the episodes, as their indices. The samples of an episode are
        taken for neighbours, or for `size` samples apart. A group is known by its samples; groups
        whose samples are all alike stay in their order. Nothing is yielded if B has other groups.
        """
        count = len(self.places)
        alike_b = np.empty_like(self.alike)
        alike_b[self.places] = self.alike
        for groups in (np.arange(count) // (count // size), np.arange(count) % size):
            mine, other = (
                np.sort(alike[np.argsort(groups, kind="stable")].reshape(size, -1), axis=1)
                for alike in (self.alike, alike_b)
            )
            by_samples = [np.lexsort(each.T) for each in (mine, other)]
            if (mine[by_samples[0]] == other[by_samples[1]]).all():
                found = np.empty(size, np.int64)
                found[by_samples[0]] = by_samples[1]
                yield found


Pass = tuple[int, str, int, int]
"""The rank, phase, step and number of a pass."""
Orders = Mapping[Pass, Sequence[Order]]
"""The orders of each pass, by `pass_of` of A: one for each batch of another number of samples."""


def pass_of(table: Table, row: int) -> Pass:
    """Return the rank, phase, step and pass of a row, as a key."""
    rank = table.tensors[table.tensor[row]].rank
    return (
        rank,
        table.phases[table.phase[row]],
        int(table.step[row]),
        int(table.pass_index[row]),
    )


def call_of(table: Table, row: int) -> tuple[int, int]:
    """Return a row's index in `Table.tensors` and its call.

    The two are the key of the row's value that is the same in every pass.
    """
    return int(table.tensor[row]), int(table.call[row])


def wide(raw: Array, kind: str) -> Array:
    """Return stored values decoded to double precision, in the shape of `raw`.

    kind: the dtype's name. Complex values become complex128.
    """
    values = dtypes.decode(np.ascontiguousarray(raw), kind)
    wider = np.complex128 if dtypes.dtype(kind).family == "complex" else np.float64
    widened: Array = values.astype(wider)
    return widened
