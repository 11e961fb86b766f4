"""Where both runs state that a formula differs, although they differed by rounding before.

A record whose inputs differ already mostly inherits their difference. But where its module has
other settings, or its operation another number, and its error is much larger than the errors of its
parents, the error is not rounding that grew: the record is an origin of its own.
"""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.changes.changes import Changes
from anchorlib.diagnosis.sizes import Measures

__all__ = ["stated"]

TIMES = 10.0
"""How many times as large as the largest error of its parents a record's error has to be."""
LEAST = 2.0**-23
"""The least error that parents are assumed to have: one eps of float32."""
MOST = 512
"""The most records that are examined."""


def stated(frontier: Frontier, measures: Measures, changes: Changes) -> int | None:
    """Return A's row of the first value whose formula differs, in the first step that differs.

    None without one, and where a model was given an input of another shape in that step: numbers in
    formulas may follow the size of the batch then. Examined are only values that differ because an
    earlier record differs, and whose error is more than TIMES as large as the largest error of
    their parents.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    if not len(rows):
        return None
    at = np.flatnonzero(a.step[rows] == a.step[rows].min())
    reshaped = (measures["measured"] == "shape")[at] & (frontier.role[rows[at]] == Role.INPUT)
    if reshaped.any():
        return None
    errors = (measures["error_eps"] * measures["eps"])[at]
    apart = dict(zip(rows[at].tolist(), errors.tolist(), strict=True))
    at = at[a.of_kind("value")[rows[at]]]
    at = at[frontier.explained[rows[at]] & (frontier.role[rows[at]] == Role.COMPUTED)]
    at = at[np.argsort(a.order[rows[at]], kind="stable")][:MOST]
    row: int
    for row in rows[at].tolist():
        made_of = [apart.get(parent, 0.0) for parent in frontier.parents(row)]
        if apart[row] > TIMES * max([LEAST, *made_of]) and (
            changes.other_settings(row) or changes.other_number(row)
        ):
            return row
    return None
