"""What surrounds a record: which records came before it in its pass, and its rank's seeds.

Both help to decide whether a difference came in from outside, that is, from something that was not
recorded. `outside` asks for rows without known parents, `computed_rows` for rows that read
something unrecorded. A value that differs before a record may have decided what the record reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import DIFFERS, Frontier, Role
from anchorlib.diagnosis.pairing import Alignment

__all__ = [
    "NEARLY",
    "UNRELATED",
    "are_masked",
    "differs_before",
    "recorded_before",
    "seeds_differ",
]

Array = np.ndarray[Any, Any]
UNRELATED = 0.3
"""The cosine distance from which two tensors are not variants of one another."""
NEARLY = 16.0
"""How many times as large as an error before it an error may be that follows from it unseen."""


def recorded_before(frontier: Frontier, row: int, role: Role) -> bool:
    """Return whether records of this role, such as inputs, come before a row in its pass."""
    a, block = frontier.alignment.a, int(frontier.block_of[row])
    rows = frontier.blocks.rows_of(block)
    roles = frontier.layouts[int(frontier.blocks.layout[block])].role
    before = (a.order[rows] < a.order[row]) & (a.pass_index[rows] == a.pass_index[row])
    return bool((before & (roles == role)).any())


def are_masked(alignment: Alignment, rows: Array) -> Array:
    """Return for each row of A whether it is a value into which a mask may have put infinities.

    Neither run holds NaN, and both hold infinities: a program fills masked scores with -inf, at
    other elements where it masks otherwise. An overflow gives infinities to one run alone, or to
    gradients. rows: rows of A that have partners.
    """
    a, b = alignment.a.figures, alignment.b.figures
    rows_b = alignment.b_row[np.searchsorted(alignment.a_row, rows)]
    infinite = (a["inf"][rows] > 0) & (b["inf"][rows_b] > 0)
    infinite &= alignment.a.of_kind("value")[rows]
    masked: Array = infinite & (a["nan"][rows] == 0) & (b["nan"][rows_b] == 0)
    return masked


def differs_before(frontier: Frontier, row: int) -> bool:
    """Return whether a floating-point value recorded before a row in its pass differs."""
    a, rows = frontier.alignment.a, np.flatnonzero(frontier.status == DIFFERS)
    floats = np.array([dtypes.dtype(name).family == "float" for name in a.dtypes], bool)
    before = (a.step[rows] == a.step[row]) & (a.pass_index[rows] == a.pass_index[row])
    before &= (a.order[rows] < a.order[row]) & (a.rank[rows] == a.rank[row])
    before &= floats[a.dtype[rows]] & a.of_kind("value")[rows]
    return bool(before.any())


def seeds_differ(frontier: Frontier, row: int) -> bool:
    """Return whether both runs state a seed for the rank of a row, and these seeds differ."""
    alignment = frontier.alignment
    rank = alignment.a.tensors[alignment.a.tensor[row]].rank
    seeds = [
        table.header.get(rank, {}).get("torch.initial_seed") for table in (alignment.a, alignment.b)
    ]
    return None not in seeds and seeds[0] != seeds[1]
