"""Buffers that code makes and nothing changes: rotary tables, masks, frequencies.

Such a buffer is no state that one run loaded from elsewhere. Where parameters, inputs and seeds are
equal and the buffer differs, it was computed by another formula.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier, Role
from anchorlib.diagnosis.pairing import Table

__all__ = ["is_constant"]

SET = (Role.PARAMETER, Role.INPUT)


def is_constant(frontier: Frontier, row: int, row_b: int, related: Callable[[int], bool]) -> bool:
    """Return whether a buffer never changes in either run, while parameters and inputs are equal.

    row, row_b: the buffer's record in A and in B. False for a buffer with records of a single step,
        which do not show whether the buffer changes.
    related: returns whether the two records of a row are variants of one another. Inputs that were
        recorded after the buffer may differ in this way: the program computed them from it.
    """
    alignment, block = frontier.alignment, int(frontier.block_of[row])
    if not (_stays(alignment.a, row) and _stays(alignment.b, row_b)):
        return False
    rows = frontier.blocks.rows_of(block)
    roles = frontier.layouts[int(frontier.blocks.layout[block])].role
    outside = rows[np.isin(roles, SET)]
    other = outside[frontier.status[outside] != EQUAL]
    order, role = alignment.a.order, frontier.role
    return all(
        role[one] == Role.INPUT and order[one] > order[row] and related(one)
        for one in other.tolist()
    )


def _stays(table: Table, row: int) -> bool:
    """Return whether the tensor of a row has records of several steps, all with equal bits."""
    rows = np.flatnonzero(table.tensor == table.tensor[row])
    equal_bits = (table.digest[rows] == table.digest[row]).all(axis=1)
    return bool(equal_bits.all()) and len(np.unique(table.step[rows])) > 1
