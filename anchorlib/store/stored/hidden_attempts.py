"""Decides which rows of a rank readers see: of what was recorded again, only the last rows.

An attempt is what one writer records. A resumed run is a new attempt, which may record again what
an earlier attempt recorded; the earlier rows are then hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.store.stored.rank_rows import RankRows

__all__ = ["visible_rows"]

Array = np.ndarray[Any, Any]
KEYS = ("step", "pass_index", "call", "phase")


def visible_rows(reader: RankRows, *, attempts: bool = False) -> Array:
    """Return the numbers of the rows that readers see, in order of execution.

    A resumed run is a new attempt, which may record a coordinate (step, pass, call, phase) of a
    series again. Then all rows of the last attempt at that coordinate are visible, and rows of
    earlier attempts are not.
    attempts: True makes every row visible.
    """
    order: Array = _sorted(reader.column("order"))
    attempt = reader.column("attempt")
    if attempts or not len(attempt) or attempt.min() == attempt.max():
        return order
    keys = [reader.series_ids, *(reader.column(name) for name in KEYS)]
    last = _group_maximum(keys, attempt)
    seen: Array = order[attempt[order] == last[order]]
    return seen


def _sorted(values: Array) -> Array:
    # Records nearly always arrive in order, and to check that is far cheaper than to sort.
    if (values[1:] >= values[:-1]).all():
        return np.arange(len(values))
    return np.argsort(values, kind="stable")


def _group_maximum(keys: list[Array], values: Array) -> Array:
    """Return, for each row, the largest entry of `values` among the rows that have its keys.

    keys: several arrays, each with an entry for each row; two rows have equal keys if their entries
    are equal in every one of these arrays.
    """
    order = np.lexsort([values, *keys])
    ends = np.zeros(len(order), bool)
    ends[-1] = True
    for key in keys:
        sorted_key = key[order]
        ends[:-1] |= sorted_key[1:] != sorted_key[:-1]
    # The last row of each group holds its largest value.
    group = np.concatenate([[0], np.cumsum(ends[:-1])])
    largest = values[order][ends][group]
    maxima: Array = np.empty_like(largest)
    maxima[order] = largest
    return maxima
