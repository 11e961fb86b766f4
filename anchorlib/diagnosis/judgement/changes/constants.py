"""Constants that code makes and nothing changes: rotary tables, masks, frequencies, chances.

Such a buffer is no state that one run loaded from elsewhere, and such an anchored value is no data.
Where parameters, inputs and seeds are equal and the constant differs, it was computed by another
formula.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier, Role
from anchorlib.diagnosis.pairing import Table

__all__ = ["is_constant"]

SET = (Role.PARAMETER, Role.INPUT)


def is_constant(frontier: Frontier, row: int, row_b: int, related: Callable[[int], bool]) -> bool:
    """Return whether a record never changes in either run, while parameters and inputs are equal.

    Such a record is a constant that code makes. Some inputs of its step may differ all the same:
    those that were recorded after it and that the program may have computed from it. After a
    buffer, these are inputs whose two records are `related`. After an anchored value, these are all
    inputs, as the value may hold the chances by which the program draws them; but an input of
    several elements must be equal.

    related: returns whether the two records of a row are variants of one another.
    row, row_b: the record of a buffer, or of an anchored value, in A and in B. False for a buffer
    with records of a single step, which do not show whether it changes.
    """
    alignment, block = frontier.alignment, int(frontier.block_of[row])
    loose = bool(frontier.role[row] == Role.LOOSE)
    if not (_stays(alignment.a, row, once=loose) and _stays(alignment.b, row_b, once=loose)):
        return False
    rows = frontier.blocks.rows_of(block)
    roles = frontier.layouts[int(frontier.blocks.layout[block])].role
    outside = rows[np.isin(roles, SET)]
    other = outside[frontier.status[outside] != EQUAL]
    order, role, numel = alignment.a.order, frontier.role, alignment.a.figures["numel"]
    equal = outside[(frontier.status[outside] == EQUAL) & (role[outside] == Role.INPUT)]
    drawn = bool((numel[equal] > 1).any())
    if loose and not drawn:
        return False
    return all(
        role[one] == Role.INPUT and order[one] > order[row] and (loose or related(one))
        for one in other.tolist()
    )


def _stays(table: Table, row: int, *, once: bool) -> bool:
    """Return whether the tensor of a row has records of several steps, all with equal bits.

    once: whether it suffices that all its records are of the run's first step, if the run has later
        steps.
    """
    rows = np.flatnonzero(table.tensor == table.tensor[row])
    equal_bits = (table.digest[rows] == table.digest[row]).all(axis=1)
    first, last = int(table.step.min()), int(table.step.max())
    made_once = once and last > first and bool((table.step[rows] == first).all())
    return bool(equal_bits.all()) and (made_once or len(np.unique(table.step[rows])) > 1)
