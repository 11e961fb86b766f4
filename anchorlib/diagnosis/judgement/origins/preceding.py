"""Why a record that differs before the first origin is not an origin itself."""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.origins.origins import Origin
from anchorlib.diagnosis.pairing import RecordPlace, Table
from anchorlib.names import escape, join

__all__ = ["preceding"]


def preceding(frontier: Frontier, first: RecordPlace, origin: Origin) -> str:
    """Return a clause that says why the first record that differs is not the first origin.

    "" where that record is the first origin, or has the tensor and the bits of the first origin,
    such as a parameter that was recorded in another phase.

    first: the place of the first record that differs. origin: the first origin.
    """
    if first == origin.place:
        return ""
    a = frontier.alignment.a
    row, row_of_origin = _row(a, first), _row(a, origin.place)
    if a.tensor[row] == a.tensor[row_of_origin] and _has_bits_of(frontier, row, row_of_origin):
        return ""
    if first == origin.place._replace(rank=first.rank):
        return f"is that of rank {first.rank}"
    if a.step[row_of_origin] == a.step[row] and frontier.first_order[row_of_origin] <= a.order[row]:
        return "is the same tensor under another name"
    if not frontier.explained[row]:
        there = f" in phase {escape(first.phase)}" if first.phase != origin.place.phase else ""
        return f"is made by the same operation{there}"
    follows = [
        parent for parent in frontier.parents(row, saved=True) if frontier.status[parent] == 1
    ]
    if follows:
        tensor = a.tensors[a.tensor[follows[0]]]
        return f"follows from {escape(join(tensor.name, tensor.kind))}"
    return "follows from what another rank computed, whose records are counted apart"


def _has_bits_of(frontier: Frontier, row: int, other: int) -> bool:
    """Return whether two rows of A have equal bits, and their two partners in B have equal bits."""
    alignment = frontier.alignment
    rows_b = alignment.b_row[np.searchsorted(alignment.a_row, [row, other])]
    sides = ((alignment.a.digest, (row, other)), (alignment.b.digest, rows_b))
    return all(bool((digest[one] == digest[two]).all()) for digest, (one, two) in sides)


def _row(table: Table, place: RecordPlace) -> int:
    """Return the row of `table` with the record that has the coordinates of `place`."""
    there = table.of_tensor(place.name, place.kind, place.rank)
    there &= table.phase == list(table.phases).index(place.phase)
    for name in ("step", "pass_index", "call"):
        there &= getattr(table, name) == getattr(place, name)
    return int(np.flatnonzero(there)[0])
