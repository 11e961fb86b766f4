"""Where both runs state that a formula differs, behind rounding that began before it.

A record whose inputs differ already only receives. But where its module was made otherwise, or its
operation was told another number, and it is much further apart than anything that it was made of,
that is no rounding that grew: it is an origin of its own.
"""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.changes import Changes
from anchorlib.diagnosis.sizes import Measures

__all__ = ["stated"]

TIMES = 10.0
"""Times the error of what it was made of."""
LEAST = 2.0**-23
"""The least error of that: one eps of float32."""
MOST = 512
"""Records that are looked at."""


def stated(frontier: Frontier, measures: Measures, changes: Changes) -> int | None:
    """The first such value of the first step that differs, in A's order; None without."""
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    if not len(rows):
        return None
    at = np.flatnonzero(a.step[rows] == a.step[rows].min())
    errors = (measures["error_eps"] * measures["eps"])[at]
    apart = dict(zip(rows[at].tolist(), errors.tolist(), strict=True))
    values = np.array([tensor.kind == "value" for tensor in a.tensors], bool)
    at = at[values[a.tensor[rows[at]]]]
    at = at[frontier.explained[rows[at]] & (frontier.role[rows[at]] == Role.COMPUTED)]
    at = at[np.argsort(a.order[rows[at]], kind="stable")][:MOST]
    row: int
    for row in rows[at].tolist():
        made_of = [apart.get(one, 0.0) for one in frontier.parents(row)]
        if apart[row] > TIMES * max([LEAST, *made_of]) and (
            changes.other_settings(row) or changes.other_number(row)
        ):
            return row
    return None
