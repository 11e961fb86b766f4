"""Where the bits of a value that autograd does not follow were recorded before.

`detach`, `no_grad`, `clone`, `numpy` and back: none of them shows in a graph, and all of them keep
the bits. A value whose bits an earlier record of its run has is taken for a copy of that.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table

__all__ = ["copies"]

Array = np.ndarray[Any, Any]
TELLING = 16
"""Integers and booleans of which two tensors have the same by chance no more."""
MIXING = np.uint64(0x9E3779B97F4A7C15)


def copies(alignment: Alignment, rows: Array) -> dict[int, int]:
    """Of those of A's rows whose bits were recorded before, in A or in B, the latest such record.

    rows: all matched. Both sides are rows of A.
    """
    a, b = alignment.a, alignment.b
    found: dict[int, int] = {}
    partner = np.full(len(a), -1)
    partner[alignment.a_row] = alignment.b_row
    back = np.full(len(b), -1)
    back[alignment.b_row] = alignment.a_row
    for row, source in _earlier(b, partner[rows]).items():
        if back[source] >= 0:
            found[int(back[row])] = int(back[source])
    return found | _earlier(a, rows)


def _earlier(table: Table, rows: Array) -> dict[int, int]:
    """Of these rows of a table, those whose bits another value of the rank had before: which."""
    rows = rows[_telling(table, rows)]
    if not len(rows):
        return {}
    keys = table.digest[:, 0] * MIXING + table.digest[:, 1]
    values = np.array([one.kind == "value" for one in table.tensors], bool)[table.tensor]
    candidates = np.flatnonzero(values & np.isin(keys, keys[rows]))
    known: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for one in candidates[np.argsort(table.order[candidates])].tolist():
        known.setdefault(_bits(table, one), []).append((int(table.order[one]), one))
    found = {}
    for row in rows.tolist():
        same = known.get(_bits(table, row), [])
        before = same[: bisect_left(same, (int(table.order[row]), -1))]
        # What is given anew each time, as one batch of data, is no copy of itself.
        others = (one for _, one in reversed(before) if table.tensor[one] != table.tensor[row])
        source = next(others, None)
        if source is not None and table.tensor[before[0][1]] != table.tensor[row]:
            found[row] = source
    return found


def _bits(table: Table, row: int) -> tuple[int, ...]:
    """What two records of the same bits have in common, whatever their shapes."""
    rank = table.tensors[table.tensor[row]].rank
    high, low = table.digest[row].tolist()
    return rank, int(table.dtype[row]), int(table.figures["numel"][row]), high, low


def _telling(table: Table, rows: Array) -> Array:
    """Whether two tensors with the bits of these would hardly have them by chance."""
    whole = [dtypes.dtype(name).family in ("int", "bool") for name in table.dtypes]
    few = np.array(whole or [False], bool)[table.dtype[rows]]
    few &= table.figures["numel"][rows] < TELLING
    found: Array = (table.figures["min"][rows] < table.figures["max"][rows]) & ~few
    return found
