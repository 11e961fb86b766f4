"""Backward passes that contribute in another order, or in other parts, to equal gradients.

for task in tasks:                       for task in reversed(tasks):
    loss(task).backward()                    loss(task).backward()

The gradient that an optimizer reads is the sum over these passes. It is equal in both runs but for
rounding, although the first pass of A contributes something else than the first pass of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.judgement.origins.learning import LIMIT
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Table
from anchorlib.errors import StoreError

__all__ = ["in_turn"]

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 1 << 22


def in_turn(first: FirstStep) -> bool:
    """Return whether passes contribute different parts to gradients whose sums over passes agree.

    Only the gradients of single passes that differ in the first step are looked at. False where
    they agree pass by pass but for rounding, where a parameter has only one pass, and where their
    values were not kept or are too many.
    """
    a, b = first.alignment.a, first.alignment.b
    tensors = a.tensor[first.rows[first.here]]
    numbers = [
        number for number in np.unique(tensors).tolist() if a.tensors[number].kind == "pass_grad"
    ]
    many = [number for number in numbers if len(first.rows_of[0].get(number, ())) > 1]
    errors = first.measures["error_eps"][first.here][np.isin(tensors, numbers)]
    if not many or many != numbers or (errors <= LIMIT).all():
        return False
    for number in numbers:
        mine, other = (
            _added_up(table, rows.get(at, ()))
            for table, rows, at in zip(
                (a, b), first.rows_of, (number, first.partner[number]), strict=True
            )
        )
        if mine is None or other is None or len(mine.total) != len(other.total):
            return False
        eps = float(dtypes.dtype(a.dtypes[a.dtype[first.rows_of[0][number][0]]]).eps or 0.0)
        if not np.linalg.norm(mine.total - other.total) <= LIMIT * eps * mine.size:
            return False
    return True


class _Sum(NamedTuple):
    """The sum of several records, and the norm of the largest of them."""

    total: Array
    size: float


def _added_up(table: Table, rows: Sequence[int]) -> _Sum | None:
    """Return the sum of records of one tensor, and the norm of the largest of them.

    None where there are no records, their shapes differ, or their values were not kept, cannot be
    read or are more than MOST_ELEMENTS.
    """
    if not rows or int(table.figures["numel"][list(rows)].sum()) > MOST_ELEMENTS:
        return None
    try:
        read = [values(table, row) for row in rows]
    except StoreError:
        return None
    parts = [part for part in read if part is not None]
    if len(parts) < len(rows) or any(part.shape != parts[0].shape for part in parts):
        return None
    return _Sum(np.sum(parts, axis=0), max(float(np.linalg.norm(part)) for part in parts))
