"""The values around the worst element of a pair, as a picture of how two tensors differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.report.run_view import PageBudget

__all__ = ["nearby_values"]

Array = np.ndarray[Any, Any]
RADIUS = 5  # elements shown on either side
BLOCK = 1 << 20  # bytes read at a time


def nearby_values(
    alignment: Alignment,
    cells: Mapping[str, Array],
    pairs: Array,
    wanted: Sequence[int],
    budget: PageBudget,
) -> list[dict[str, Any]]:
    """Return the elements within RADIUS of the worst element, for the cells that matter most.

    Each dict describes the worst pair of one cell, with the keys that `ComparisonView.nearby`
    lists; elements are counted in C order. The `wanted` cells come first; the others follow, the
    largest error first, as far as the budget allows. A cell is left out if a run did not keep the
    values, or if it is not known which element differs most.

    cells: `ComparisonView.cells`, the cells (line and column of the page) that differ.
    pairs: for each of `cells`, the index of its worst pair in `alignment`.
    wanted: the cells of the first divergence and of the origins (where differences begin).
    """
    neighbourhoods: list[dict[str, Any]] = []
    left = budget.read_bytes
    for place in _chosen(cells, wanted):
        pair, worst = int(pairs[place]), cells["worst"][place]
        rows = ((alignment.a, alignment.a_row[pair]), (alignment.b, alignment.b_row[pair]))
        if not worst >= 0 or not all(table.kept[row] for table, row in rows):
            continue
        left -= sum(_cost(table, int(row), int(worst)) for table, row in rows)
        if left < 0 or len(neighbourhoods) == budget.neighbourhoods:
            break
        start = max(0, int(worst) - RADIUS)
        a, b = (_around(table, int(row), start, int(worst) + RADIUS + 1) for table, row in rows)
        if len(a) and len(a) == len(b):
            shape = alignment.a.shapes[alignment.a.shape[rows[0][1]]]
            neighbourhoods.append(
                {
                    "cell": int(cells["cell"][place]),
                    "start": start,
                    "worst": int(worst),
                    "shape": list(shape),
                    "a": [_text(value) for value in a],
                    "b": [_text(value) for value in b],
                    "difference": _difference(a, b),
                }
            )
    return neighbourhoods


def _chosen(cells: Mapping[str, Array], wanted: Sequence[int]) -> Iterator[int]:
    """Yield indices into `cells`, each once: the wanted cells, then the others.

    Of the others the largest error comes first, and unknown errors last.
    wanted: cell numbers, as in `cells["cell"]`; those that are not there are skipped.
    """
    cell = cells["cell"]
    places = {int(one): place for place, one in enumerate(cell)}
    chosen = [places[one] for one in wanted if one in places]
    chosen += np.argsort(-np.nan_to_num(cells["error_eps"], nan=-1), kind="stable").tolist()
    yield from dict.fromkeys(chosen)


def _cost(table: Table, row: int, worst: int) -> int:
    size = dtypes.dtype(table.dtypes[table.dtype[row]]).storage.itemsize
    return (worst + RADIUS + 1) * size + BLOCK


def _around(table: Table, row: int, start: int, stop: int) -> Array:
    """Return elements `start` to `stop` - 1 (in C order) of a record, as numbers NumPy knows.

    There are fewer elements where the record ends earlier. row: the record's row in `table`.
    """
    name = table.dtypes[table.dtype[row]]
    parts, place = [], 0
    for block in table.read(row, BLOCK):
        flat = block.reshape(-1)
        if place + flat.size > start:
            parts.append(flat[max(0, start - place) : stop - place])
        place += flat.size
        if place >= stop:
            break
    if not parts:
        return np.empty(0)
    return dtypes.decode(np.ascontiguousarray(np.concatenate(parts)), name)


def _difference(a: Array, b: Array) -> list[float | None]:
    """Return for each element b − a in float64, or |b − a| if an array is complex.

    None stands for an element whose values in the two runs have the same text.
    """
    wide = np.complex128 if a.dtype.kind == "c" or b.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        apart = b.astype(wide) - a.astype(wide)
    figures = np.abs(apart) if wide is np.complex128 else apart
    texts = zip(figures.tolist(), a, b, strict=True)
    return [None if _text(one) == _text(two) else float(figure) for figure, one, two in texts]


def _text(value: Any) -> str:
    """Return the shortest text that reads back as this value in its own dtype."""
    return str(value.item()) if value.dtype.kind in "ib" else str(value)
