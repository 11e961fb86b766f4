"""Which elements of a tensor differ, by the indices of each axis.

"rows 12–15 of 16" often suggests the cause at once: padding, one head of eight, the end of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.errors import StoreError

__all__ = ["EQUAL", "NONFINITE", "apart", "read", "where", "whereabouts"]

Array = np.ndarray[Any, Any]
RANGES_SHOWN = 6
FEWEST_REGULAR = 3
BLOCK = 1 << 20  # bytes read at a time
MOST_ELEMENTS = 1 << 22
EQUAL, NONFINITE = -1.0, -3.0  # the marks that a comparison's grid of differences uses too


def whereabouts(alignment: Alignment, pair: int) -> str:
    """Return where two paired records differ, such as "rows 12–15 of 16"; "all" or "" otherwise.

    There is a clause for each axis on which only some of the indices have a difference. The result
    is "all" where every index of every axis has a difference. It is "" where the places are not
    known: shapes differ, values were not kept or cannot be read, or there are more than four
    million elements.
    pair: the pair's index in `alignment`.
    """
    sides = (
        (alignment.a, int(alignment.a_row[pair])),
        (alignment.b, int(alignment.b_row[pair])),
    )
    shapes = {tuple(table.shapes[table.shape[row]]) for table, row in sides}
    kept = all(table.kept[row] for table, row in sides)
    if len(shapes) > 1 or not kept or sides[0][0].figures["numel"][sides[0][1]] > MOST_ELEMENTS:
        return ""
    try:
        values_a, values_b = (read(table, row) for table, row in sides)
    except StoreError:
        return ""
    differs = (apart(values_a, values_b) != EQUAL).reshape(shapes.pop())
    partly = [clause for clause in where(differs) if not clause.startswith(("all ", "the only "))]
    return ", ".join(partly) or "all"


def read(table: Table, row: int) -> Array:
    """Return all stored values of a record, decoded, as a flat array."""
    name = table.dtypes[table.dtype[row]]
    parts = [block.reshape(-1) for block in table.read(row, BLOCK)]
    return dtypes.decode(np.concatenate(parts), name) if parts else np.empty(0)


def apart(a: Array, b: Array) -> Array:
    """Return |b − a| of each element; EQUAL where bits agree, NONFINITE where |b − a| is no number.

    NONFINITE also stands for infinity. Where the dtypes of a and b differ, elements agree if their
    values are equal.
    """
    wide = np.complex128 if a.dtype.kind == "c" or b.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):  # a signalling NaN is no reason to warn
        wide_a, wide_b = a.astype(wide), b.astype(wide)
        distance: Array = np.abs(wide_b - wide_a).astype(np.float64)
    distance[~np.isfinite(distance)] = NONFINITE
    distance[_same(a, b)] = EQUAL
    return distance


def _same(a: Array, b: Array) -> Array:
    """Return a mask of the elements with equal bits in both, or equal values if dtypes differ."""
    if a.dtype != b.dtype:
        equal: Array = (a == b) | ((a != a) & (b != b))
        return equal
    size = a.dtype.itemsize
    bits = [np.ascontiguousarray(values).view(np.uint8).reshape(-1, size) for values in (a, b)]
    agree: Array = (bits[0] == bits[1]).all(axis=1)
    return agree


def where(differs: Array) -> list[str]:
    """Return a clause for each axis on the indices that differ, such as "rows 12–15 of 16".

    differs: a mask of the tensor's shape. Where all indices of an axis differ, or none, the clause
    says so: "all 16 rows".
    """
    dimensions = differs.ndim
    names = {1: ("element",), 2: ("row", "column")}.get(dimensions, ())
    clauses = []
    for axis, size in enumerate(differs.shape):
        rest = tuple(other for other in range(dimensions) if other != axis)
        places = np.flatnonzero(differs.any(axis=rest))
        singular = names[axis] if names else f"axis {axis} index"
        plural = f"{singular}s" if names else f"axis {axis} indices"
        if len(places) == size:
            clauses.append(f"all {size:,} {plural}" if size != 1 else f"the only {singular}")
        elif not len(places):  # the dtypes differ, and the values do not
            clauses.append(f"none of {size:,} {plural}")
        else:
            clauses.append(
                f"{singular if len(places) == 1 else plural} {_ranges(places)} of {size:,}"
            )
    return clauses


def _ranges(places: Array) -> str:
    """Return indices in words: "3", "12–15", "0, 4 and 7", "1 to 31 by 2", "2–3 and 40 more"."""
    steps = np.diff(places)
    if len(places) > FEWEST_REGULAR and steps[0] > 1 and (steps == steps[0]).all():
        return f"{places[0]} to {places[-1]} by {steps[0]}"
    cuts = np.flatnonzero(steps != 1) + 1
    ranges = [_range(run_of_places) for run_of_places in np.split(places, cuts)[:RANGES_SHOWN]]
    more = len(places) - sum(
        len(run_of_places) for run_of_places in np.split(places, cuts)[:RANGES_SHOWN]
    )
    if more:
        return f"{', '.join(ranges)} and {more:,} more"
    return " and ".join(filter(None, [", ".join(ranges[:-1]), ranges[-1]]))


def _range(places: Array) -> str:
    return str(places[0]) if len(places) == 1 else f"{places[0]}–{places[-1]}"
