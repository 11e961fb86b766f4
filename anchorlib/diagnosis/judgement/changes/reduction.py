"""What each run makes of the gradients of its ranks: their mean, their sum, or nothing at all.

A averages it over the ranks, B leaves each rank its own
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Table
from anchorlib.errors import StoreError

__all__ = ["reduced_otherwise"]

Array = np.ndarray[Any, Any]
NEAR = 1e-5  # share of a gradient's norm by which it may be off, from rounding
FEW = 8  # elements: smaller gradients are near one another by chance
MOST_ELEMENTS = 1 << 22
MOST_RANKS = 64
OWN = "leaves each rank its own"


def reduced_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Say what each run makes of its ranks' gradients at a `grad` row; [] if alike or unclear.

    row: a gradient of A, as the optimizer reads it.
    """
    alignment = frontier.alignment
    a = alignment.a
    if alignment.merged or not FEW <= a.figures["numel"][row] <= MOST_ELEMENTS:
        return []
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    try:
        ways = [_way(table, at) for table, at in ((a, row), (alignment.b, row_b))]
    except StoreError:
        return []
    return [f"A {ways[0]}, B {ways[1]}"] if all(ways) and ways[0] != ways[1] else []


def _way(table: Table, row: int) -> str:
    """Return a phrase on what a run made of its ranks' gradients: "sums it over the ranks".

    "" where that is not clear from the recorded values.
    """
    name, kind, _, rank = table.tensors[table.tensor[row]]
    taken = values(table, row) if kind == "grad" else None
    sums: dict[int, Array] = {}
    rows = np.flatnonzero(table.of_tensor(name, "pass_grad"))
    rows = rows[(table.step[rows] == table.step[row]) & (table.attempt[rows] == table.attempt[row])]
    for one in rows.tolist():
        part, of_rank = values(table, one), table.tensors[table.tensor[one]].rank
        if part is None or taken is None or len(part) != len(taken) or len(sums) > MOST_RANKS:
            return ""
        sums[of_rank] = sums.get(of_rank, np.zeros_like(part)) + part
    if taken is None or rank not in sums or len(sums) < 2:
        return ""
    whole = np.sum(list(sums.values()), axis=0)
    ways = {
        OWN: sums[rank],
        "averages it over the ranks": whole / len(sums),
        "sums it over the ranks": whole,
    }
    size = float(np.linalg.norm(taken))
    fits = [way for way, made in ways.items() if np.linalg.norm(taken - made) <= NEAR * size]
    return fits[0] if len(fits) == 1 else ""
