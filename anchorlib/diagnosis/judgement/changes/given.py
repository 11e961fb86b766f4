"""At which step, or on which rank, A has an input of B: data skipped, repeated or reordered.

B is given here what A is given at step 7, pass 0
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.series import series
from anchorlib.diagnosis.pairing import Table

__all__ = ["given_elsewhere"]

Array = np.ndarray[Any, Any]


def given_elsewhere(frontier: Frontier, row: int) -> str:
    """Say at which step and pass, or on which rank, A is given what B is given at a row; or "".

    row: a row of A. "" for rows that are no input of a model, for inputs of one element, and for an
    input that a run is given several times, in the step itself or in the whole run.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    if frontier.role[row] != Role.INPUT or a.figures["numel"][row] < 2:
        return ""
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    places = []
    for table, at in ((a, row), (b, row_b)):
        rows = series(table, at, "value")
        rows = rows[(table.digest[rows] == b.digest[row_b]).all(axis=1)]
        inside = rows[table.step[rows] == table.step[at]]
        places.append((inside, rows))
    same, own = places[0][0], places[1][0]
    if not len(same):
        same, own = places[0][1], places[1][1]
    if not len(same):
        return _on_another_rank(a, row, b.digest[row_b])
    if len(same) != 1 or len(own) != 1:
        return ""
    step, passed = int(a.step[same[0]]), int(a.pass_index[same[0]])
    return f"B is given here what A is given at step {step}, pass {passed}"


def _on_another_rank(table: Table, row: int, digest: Array) -> str:
    """Say on which one other rank A is given the bits `digest` in a row's step and pass; or ""."""
    own = table.tensors[table.tensor[row]]
    which = table.of_tensor(own.name, own.kind)
    for place in (table.step, table.pass_index, table.call, table.phase):
        which &= place == place[row]
    ranks = [
        table.tensors[table.tensor[one]].rank
        for one in np.flatnonzero(which).tolist()
        if (table.digest[one] == digest).all()
    ]
    return f"B is given here what A is given on rank {ranks[0]}" if len(ranks) == 1 else ""
