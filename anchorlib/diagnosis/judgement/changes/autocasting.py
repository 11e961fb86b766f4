"""Autocast as a cause: on in one run alone, or with another dtype in each run.

    autocast bfloat16 | off

`autocast_otherwise` makes this clause from the headers of the two runs. Autocast adds casts to the
operations and changes the dtypes of their operands. So where there is such a clause, the caller
compares the operations without these (`without_casts`): a cast that one run alone has, or an
operand that is described differently, is then not named as a second cause.
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
    """Return the clause that the runs used different autocast dtypes at a row of A; else [].

    Both headers must state the autocast dtype (or off), and the difference must show at the row: in
    its dtype, or in how many casts lie among its operations.
    a, b: the operations that made the row in A, and in B.
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
    """Return the operations that are no casts, without the arguments that describe operands."""
    return without_data([op for op in ops if not op.name.startswith(CAST)])


def _casts(ops: Sequence[Operation]) -> int:
    return sum(op.name.startswith(CAST) for op in ops)
