"""Rows matched by equal keys, by sorting and searching whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["joined", "occurrences", "packed"]

Array = np.ndarray[Any, Any]
LIMIT = 1 << 62


def packed(columns: Sequence[Array]) -> Array:
    """Return one int64 for each row; two rows have equal numbers where all their columns agree."""
    keys = np.zeros(len(columns[0]), np.int64)
    if not len(keys):
        return keys
    size = 1
    for one in columns:
        column = one
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span * size >= LIMIT:
            # Numbers for values that are far apart: there are no more of them than rows.
            column, low = _numbered(column), 0
            span = int(column.max()) + 1
        if span * size >= LIMIT:
            keys = _numbered(keys)
            size = int(keys.max()) + 1
        keys = keys * span + (column - low)
        size *= span
    return keys


def joined(a: Array, b: Array) -> tuple[Array, Array]:
    """Return where the keys that both arrays have stand: their indices in `a`, and those in `b`.

    The indices in `a` are ascending. Keys must be unique within each of the two arrays.
    """
    order = np.argsort(b, kind="stable")
    ascending = b[order]
    place = np.searchsorted(ascending, a)
    place[place == len(b)] = 0
    hit = np.flatnonzero(ascending[place] == a) if len(b) else np.empty(0, np.int64)
    return hit, order[place[hit]]


def occurrences(keys: Array) -> Array:
    """Return for each entry how many entries before it have an equal key."""
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    begins = np.ones(len(keys), bool)
    begins[1:] = ascending[1:] != ascending[:-1]
    starts = np.flatnonzero(begins)
    counts = np.empty(len(keys), np.int64)
    counts[order] = np.arange(len(keys)) - starts[np.cumsum(begins) - 1]
    return counts


def _numbered(column: Array) -> Array:
    """Return for each entry its index among the sorted distinct entries."""
    numbers: Array = np.unique(column, return_inverse=True)[1].reshape(-1)
    return numbers.astype(np.int64)
