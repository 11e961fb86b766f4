"""Autocast that one run alone is under, or both with other dtypes: it explains what it casts.

    autocast bfloat16 | off

Autocast adds casts and changes the dtypes of operands. So the casts, and the operands that one
operation alone keeps, are left out where autocast is named as the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.changes.indices import without_data
from anchorlib.diagnosis.judgement.changes.operations import Operation
from anchorlib.diagnosis.sizes import AUTOCAST, CAST

__all__ = ["autocast_otherwise", "without_casts"]

OFF = "off"


def autocast_otherwise(
    frontier: Frontier, row: int, a: Sequence[Operation], b: Sequence[Operation]
) -> list[str]:
    """Say that the runs were under autocast of different types where a row was made; else [].

    Both headers must state it, and it must show at the row: in its element type, or in its casts.
    a, b: the operations that made the row.
    """
    alignment = frontier.alignment
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    rank = alignment.a.tensors[alignment.a.tensor[row]].rank
    headers = [table.header.get(rank, {}) for table in (alignment.a, alignment.b)]
    if not all(AUTOCAST in header for header in headers):
        return []
    type_a, type_b = (str(header[AUTOCAST] or OFF) for header in headers)
    dtypes = [t.dtypes[t.dtype[at]] for t, at in ((alignment.a, row), (alignment.b, row_b))]
    if type_a == type_b or (dtypes[0] == dtypes[1] and _casts(a) == _casts(b)):
        return []
    return [f"autocast {type_a} | {type_b}"]


def without_casts(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations without casts, and without operands, whose dtypes casts change."""
    return without_data([op for op in ops if not op.name.startswith(CAST)])


def _casts(ops: Sequence[Operation]) -> int:
    return sum(op.name.startswith(CAST) for op in ops)
