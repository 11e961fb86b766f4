"""Where in a tensor two runs differ: which indices of each axis, and a small picture.

elements that differ ─┬─ along each axis ──▶ "rows 12–15 of 16", "all 32 columns"
                      └─ as a matrix ──────▶ at most SIDE × SIDE blocks, of each the largest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import EQUAL, NONFINITE, apart, read, where
from anchorlib.report.run_view import PageBudget

__all__ = ["Footprint", "footprints"]

Array = np.ndarray[Any, Any]
SIDE = 48


@dataclass(frozen=True, slots=True)
class Footprint:
    """Where in their tensor the two records of a cell's worst pair differ.

    cell: the cell of the page, as line * columns + column.
    axes: for each axis, a text that says at which of its indices elements differ.

    shape: (rows, columns) of the tensor seen as a matrix: its first axes make the rows, the others
        the columns.
    picture: that matrix in blocks, at most SIDE × SIDE: for each block the largest |b − a|; EQUAL
        where no bit of the block differs, NONFINITE where an element is finite in one run alone.
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
    budget: PageBudget,
) -> list[Footprint]:
    """Return the footprints of the `wanted` cells, in their order, as far as the budget goes.

    A footprint says where in the tensor the two records of a cell's worst pair differ. A cell is
    left out if nothing in it differs, if a run did not keep the values, if the two shapes differ,
    or if it has more elements than the budget has left.
    cells: `ComparisonView.cells`, the cells (line and column of the page) that differ.
    pairs: for each of `cells`, the index of its worst pair in `alignment`.
    wanted: the cells of the first divergence and of the origins (where differences begin).
    """
    prints: list[Footprint] = []
    left = budget.footprint_elements
    places = {int(one): place for place, one in enumerate(cells["cell"])}
    for cell in dict.fromkeys(wanted):
        if cell not in places or len(prints) == budget.footprints:
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
        values = [read(table, row) for table, row in sides]
        shape = tuple(shapes.pop())
        if all(one.size == int(np.prod(shape, dtype=np.int64)) for one in values):
            prints.append(_footprint(cell, apart(*values).reshape(shape)))
    return prints


def _elements(table: Table, row: int) -> int:
    return int(np.prod(table.shapes[table.shape[row]], dtype=np.int64))


def _footprint(cell: int, difference: Array) -> Footprint:
    split = _split(difference.shape)
    rows = int(np.prod(difference.shape[:split], dtype=np.int64))
    matrix = difference.reshape(rows, -1) if difference.size else np.empty((0, 0))
    shape = (matrix.shape[0], matrix.shape[1])
    return Footprint(cell, where(difference != EQUAL), shape, _smaller(matrix))


def _split(shape: tuple[int, ...]) -> int:
    """Return how many leading axes to make the rows, so that the matrix is as square as can be.

    0, for a single row, if there are fewer than two axes or no elements.
    """
    sizes = [int(np.prod(shape[:k], dtype=np.int64)) for k in range(len(shape) + 1)]
    if sizes[-1] == 0 or len(shape) < 2:
        return 0
    return min(range(1, len(shape)), key=lambda k: abs(np.log(sizes[k] ** 2 / sizes[-1])))


def _smaller(matrix: Array) -> Array:
    """Return a picture of at most SIDE × SIDE entries, each the worst element of a block.

    matrix: |b - a| of each element, or EQUAL or NONFINITE. NONFINITE is worse than any difference,
    and a larger difference worse than a smaller one; EQUAL is the best.
    """
    rank = np.where(matrix == NONFINITE, np.inf, matrix)
    for axis in (0, 1):
        size = rank.shape[axis]
        if size > SIDE:
            starts = np.arange(SIDE) * size // SIDE
            rank = np.maximum.reduceat(rank, starts, axis=axis)
    return np.where(np.isinf(rank), NONFINITE, rank)
