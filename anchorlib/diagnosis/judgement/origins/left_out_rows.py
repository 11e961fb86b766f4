"""Rows of a model's output that one run alone computes, and that no loss reads.

    cross_entropy(head(h).flatten(0, 1), targets, ignore_index=PAD)
    cross_entropy(head(h[targets != PAD]), targets[targets != PAD])

The second program leaves out the logits at padded places, or at places that a masked language model
need not tell. In the first one the gradient of these rows is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.judgement.series import site_of, values
from anchorlib.diagnosis.pairing import Table
from anchorlib.errors import StoreError

__all__ = ["leaves_out_idle_rows"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
MOST_ELEMENTS = 1 << 22


def leaves_out_idle_rows(first: FirstStep, number: int, limit: float) -> bool:
    """Return whether one run alone computes some rows of a tensor, on which no loss depends.

    All axes but the last count as rows. In each record of the step, the rows whose gradient is not
    zero are as many in both runs and agree, in their order, in value and gradient, within `limit`
    eps of float32 or of their own coarser format.
    number: the tensor's index in A's table.
    """
    tables = first.alignment.a, first.alignment.b
    if number not in first.partner:
        return False
    sides = [
        [(table, row) for row in rows_of.get(of_run, [])]
        for table, rows_of, of_run in zip(
            tables, first.rows_of, (number, first.partner[number]), strict=True
        )
    ]
    if not sides[0] or len(sides[0]) != len(sides[1]):
        return False
    gradients = [_gradients(table, step) for table, step in zip(tables, first.steps, strict=True)]
    for pair in zip(*sides, strict=True):
        try:
            read = [
                _rows(table, row, known)
                for (table, row), known in zip(pair, gradients, strict=True)
            ]
        except StoreError:
            return False
        if not _agree(read, limit * max(EPS32, *(_eps(*one) for one in pair))):
            return False
    return True


def _agree(read: list[tuple[Array, Array] | None], most: float) -> bool:
    """Return whether the rows that have a gradient, one at least, agree in value and gradient.

    read: of A's and of B's record its values and its gradients, as rows. most: the relative error.
    """
    if read[0] is None or read[1] is None:
        return False
    sides = read[0], read[1]
    used = [gradients.any(axis=1) for _, gradients in sides]
    if not used[0].any() or used[0].sum() != used[1].sum():
        return False
    pairs = [(one[used[0]], other[used[1]]) for one, other in zip(*sides, strict=True)]
    return all(
        one.shape == other.shape and np.linalg.norm(other - one) <= most * np.linalg.norm(one)
        for one, other in pairs
    )


def _rows(table: Table, row: int, gradients: dict[Any, int]) -> tuple[Array, Array] | None:
    """Return a record and its gradient as rows; None where either is not known, or is too large."""
    shape = table.shapes[table.shape[row]]
    gradient = gradients.get(site_of(table, row))
    if gradient is None or len(shape) < 2 or not 0 < table.figures["numel"][row] <= MOST_ELEMENTS:
        return None
    sides = values(table, row), values(table, gradient)
    if sides[0] is None or sides[1] is None or len(sides[0]) != len(sides[1]):
        return None
    return sides[0].reshape(-1, shape[-1]), sides[1].reshape(-1, shape[-1])


def _gradients(table: Table, step: int) -> dict[Any, int]:
    """Return the rows of the gradients of a step, by the site of their values."""
    rows = np.flatnonzero(table.of_kind("grad") & (table.step == step))
    return {site_of(table, row): row for row in rows.tolist()}


def _eps(table: Table, row: int) -> float:
    """Return the eps of a record's dtype; 0.0 for integers."""
    return dtypes.dtype(table.dtypes[table.dtype[row]]).eps or 0.0
