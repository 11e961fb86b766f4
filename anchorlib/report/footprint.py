"""Where in a tensor two runs differ: which indices of each axis, and a small picture.

elements that differ ─┬─ along each axis ──▶ "rows 12–15 of 16", "all 32 columns"
                      └─ as a matrix ──────▶ at most SIDE × SIDE blocks, of each the largest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.alignment import Alignment
from anchorlib.diagnosis.table import Table
from anchorlib.report.values import Budget

__all__ = ["Footprint", "apart", "footprints", "where"]

Array = np.ndarray[Any, Any]
SIDE = 48
RANGES_SHOWN = 6
FEWEST_REGULAR = 3
BLOCK = 1 << 20  # bytes read at a time
EQUAL, NONFINITE = -1.0, -3.0  # as in the grid of a comparison


@dataclass(frozen=True, slots=True)
class Footprint:
    """Where the worst pair of a cell differs.

    axes: a sentence for each axis.
    shape: of the tensor as a matrix, its first axes the rows, before it was made smaller.
    picture: (rows, columns) of the largest |b − a| of each block; EQUAL where no bit differs,
        NONFINITE where one run alone is finite.
    """

    cell: int
    axes: Sequence[str]
    shape: tuple[int, int]
    picture: Array


def footprints(
    alignment: Alignment,
    cells: Mapping[str, Array],
    pairs: Array,
    wanted: Sequence[int],
    budget: Budget,
) -> list[Footprint]:
    """Those of the `wanted` cells (first divergence, origins) whose values both runs kept.

    cells, pairs: the worst pair of each cell. As many as the budget allows.
    """
    found: list[Footprint] = []
    left = budget.footprint_elements
    places = {int(one): place for place, one in enumerate(cells["cell"])}
    for cell in dict.fromkeys(wanted):
        if cell not in places or len(found) == budget.footprints:
            continue
        pair = int(pairs[places[cell]])
        sides = (
            (alignment.a, int(alignment.a_row[pair])),
            (alignment.b, int(alignment.b_row[pair])),
        )
        shapes = {table.shapes[table.shape[row]] for table, row in sides}
        cost = max(_elements(table, row) for table, row in sides)
        if len(shapes) > 1 or not all(table.kept[row] for table, row in sides) or cost > left:
            continue
        left -= cost
        values = [_read(table, row) for table, row in sides]
        shape = tuple(shapes.pop())
        if all(one.size == int(np.prod(shape, dtype=np.int64)) for one in values):
            found.append(_footprint(cell, apart(*values).reshape(shape)))
    return found


def _elements(table: Table, row: int) -> int:
    return int(np.prod(table.shapes[table.shape[row]], dtype=np.int64))


def _read(table: Table, row: int) -> Array:
    name = table.dtypes[table.dtype[row]]
    parts = [block.reshape(-1) for block in table.read(row, BLOCK)]
    return dtypes.decode(np.concatenate(parts), name) if parts else np.empty(0)


def apart(a: Array, b: Array) -> Array:
    """|b − a| of each element; EQUAL where the bits agree, NONFINITE where one alone is finite."""
    wide = np.complex128 if a.dtype.kind == "c" or b.dtype.kind == "c" else np.float64
    one, two = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        found: Array = np.abs(two - one).astype(np.float64)
    found[~np.isfinite(found)] = NONFINITE
    found[_same(a, b)] = EQUAL
    return found


def _same(a: Array, b: Array) -> Array:
    """Whether the bits agree; of different dtypes whether the values do."""
    if a.dtype != b.dtype:
        equal: Array = (a == b) | ((a != a) & (b != b))
        return equal
    size = a.dtype.itemsize
    bits = [np.ascontiguousarray(one).view(np.uint8).reshape(-1, size) for one in (a, b)]
    agree: Array = (bits[0] == bits[1]).all(axis=1)
    return agree


def _footprint(cell: int, difference: Array) -> Footprint:
    split = _split(difference.shape)
    rows = int(np.prod(difference.shape[:split], dtype=np.int64))
    matrix = difference.reshape(rows, -1) if difference.size else np.empty((0, 0))
    shape = (matrix.shape[0], matrix.shape[1])
    return Footprint(cell, where(difference != EQUAL), shape, _smaller(matrix))


def _split(shape: tuple[int, ...]) -> int:
    """How many of the first axes make the rows, so that rows and columns are most alike."""
    sizes = [int(np.prod(shape[:k], dtype=np.int64)) for k in range(len(shape) + 1)]
    if sizes[-1] == 0 or len(shape) < 2:
        return 0
    return min(range(1, len(shape)), key=lambda k: abs(np.log(sizes[k] ** 2 / sizes[-1])))


def _smaller(matrix: Array) -> Array:
    """At most SIDE blocks a side. NONFINITE says most, then the largest difference, then EQUAL."""
    rank = np.where(matrix == NONFINITE, np.inf, matrix)
    for axis in (0, 1):
        size = rank.shape[axis]
        if size > SIDE:
            starts = np.arange(SIDE) * size // SIDE
            rank = np.maximum.reduceat(rank, starts, axis=axis)
    return np.where(np.isinf(rank), NONFINITE, rank)


def where(differs: Array) -> list[str]:
    """One sentence for each axis: "rows 12–15 of 16", "all 32 columns"."""
    dimensions = differs.ndim
    names = {1: ("element",), 2: ("row", "column")}.get(dimensions, ())
    found = []
    for axis, size in enumerate(differs.shape):
        rest = tuple(other for other in range(dimensions) if other != axis)
        places = np.flatnonzero(differs.any(axis=rest))
        one = names[axis] if names else f"axis {axis} index"
        many = f"{one}s" if names else f"axis {axis} indices"
        if len(places) == size:
            found.append(f"all {size:,} {many}" if size != 1 else f"the only {one}")
        elif not len(places):  # another dtype, the same values
            found.append(f"none of {size:,} {many}")
        else:
            found.append(f"{one if len(places) == 1 else many} {_ranges(places)} of {size:,}")
    return found


def _ranges(places: Array) -> str:
    """As "3", "12–15", "0, 4 and 7", "1 to 31 by 2", "2–3, 7, 9 and 40 more"."""
    steps = np.diff(places)
    if len(places) > FEWEST_REGULAR and steps[0] > 1 and (steps == steps[0]).all():
        return f"{places[0]} to {places[-1]} by {steps[0]}"
    cuts = np.flatnonzero(steps != 1) + 1
    told = [_range(one) for one in np.split(places, cuts)[:RANGES_SHOWN]]
    more = len(places) - sum(len(one) for one in np.split(places, cuts)[:RANGES_SHOWN])
    if more:
        return f"{', '.join(told)} and {more:,} more"
    return " and ".join(filter(None, [", ".join(told[:-1]), told[-1]]))


def _range(places: Array) -> str:
    return str(places[0]) if len(places) == 1 else f"{places[0]}–{places[-1]}"
