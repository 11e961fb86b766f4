"""Values that autograd does not follow and that are copies of earlier records, found by their bits.

`detach`, `clone` without gradients, and a conversion to numpy and back do not show in a graph, and
keep the bits. A value with the bits of an earlier record of its run is taken for a copy of it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table

__all__ = ["copies"]

Array = np.ndarray[Any, Any]
DISTINCTIVE_ELEMENTS = 16
"""How many elements tensors of integers or booleans need, so that two are hardly equal by chance.
"""
MIXING = np.uint64(0x9E3779B97F4A7C15)


def copies(alignment: Alignment, rows: Array) -> dict[int, int]:
    """Return, for rows of A whose value is a copy in one run or in both, the row that was copied.

    The row that was copied is the latest earlier record of another tensor that has equal bits in
    the run in which the value is a copy. If it is a copy in both runs, A's records decide. Keys and
    values of the dict are rows of A; rows that are no copy are not among the keys.
    rows: rows of A that have partners in B and may be copies.
    """
    a, b = alignment.a, alignment.b
    sources: dict[int, int] = {}
    partner = np.full(len(a), -1)
    partner[alignment.a_row] = alignment.b_row
    back = np.full(len(b), -1)
    back[alignment.b_row] = alignment.a_row
    for row, source in _earlier(b, partner[rows]).items():
        if back[source] >= 0:
            sources[int(back[row])] = int(back[source])
    return sources | _earlier(a, rows)


def _earlier(table: Table, rows: Array) -> dict[int, int]:
    """Return row -> the latest earlier `value` row of another tensor on its rank with equal bits.

    A row is left out where there is no such tensor, where the earliest record with these bits is of
    the row's own tensor, and where the bits are not distinctive (`_are_distinctive`).
    """
    rows = rows[_are_distinctive(table, rows)]
    if not len(rows):
        return {}
    keys = table.digest[:, 0] * MIXING + table.digest[:, 1]
    candidates = np.flatnonzero(table.of_kind("value") & np.isin(keys, keys[rows]))
    known: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for candidate in candidates[np.argsort(table.order[candidates])].tolist():
        known.setdefault(_bits(table, candidate), []).append(
            (int(table.order[candidate]), candidate)
        )
    sources = {}
    for row in rows.tolist():
        records_of_bits = known.get(_bits(table, row), [])
        before = records_of_bits[: bisect_left(records_of_bits, (int(table.order[row]), -1))]
        # A tensor that is set anew to equal bits, as one batch in each step, is no copy of itself.
        others = (one for _, one in reversed(before) if table.tensor[one] != table.tensor[row])
        source = next(others, None)
        if source is not None and table.tensor[before[0][1]] != table.tensor[row]:
            sources[row] = source
    return sources


def _bits(table: Table, row: int) -> tuple[int, ...]:
    """Return a key that two records of one rank share if their bits are equal.

    Shapes do not count, only the number of elements.
    """
    rank = table.tensors[table.tensor[row]].rank
    high, low = table.digest[row].tolist()
    return rank, int(table.dtype[row]), int(table.figures["numel"][row]), high, low


def _are_distinctive(table: Table, rows: Array) -> Array:
    """Return a mask of the rows whose bits identify a tensor: equal bits are then no coincidence.

    Tensors of one repeated value, and integers or booleans with few elements, are not among them.
    """
    discrete = [dtypes.dtype(name).family in ("int", "bool") for name in table.dtypes]
    few = np.array(discrete or [False], bool)[table.dtype[rows]]
    few &= table.figures["numel"][rows] < DISTINCTIVE_ELEMENTS
    distinctive: Array = (table.figures["min"][rows] < table.figures["max"][rows]) & ~few
    return distinctive
