"""Where a batch norm hides a factor or a shift of its input, and its running moments show it.

    y = (x − mean) / std;   running_mean += m·(mean − running_mean);   running_var likewise

If B's x is A's times a factor, y is the same but for rounding, and so is all that follows. The
running moments are not. Rounding errors of x have either sign, so that a mean over x has less of
them than y has. So where the moments differ far more than y, and than all that was recorded before
y, x does not differ by rounding.
"""

from __future__ import annotations

import math

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.rounding.severity import TOLERANCE
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["hidden_by_a_norm"]

MEAN, VARIANCE = "running_mean", "running_var"
TIMES = 10.0
"""How many times the largest error up to the norm's results the error of its moments has to be."""
LEAST = TOLERANCE * 2.0**-23
"""The least error that is taken for the largest: what rounding makes of float32."""


def hidden_by_a_norm(frontier: Frontier, measures: Measures) -> int | None:
    """The row of the first running moment of the first step that differs; None without one.

    A pass records a buffer as it finds it, so that the moments of a step are records of its later
    passes, or of the next step.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    if not len(rows):
        return None
    first = int(a.step[rows].min())
    ends = np.array([one.name.endswith((MEAN, VARIANCE)) for one in a.tensors], bool)
    which = ends[a.tensor[rows]] & (a.step[rows] <= first + 1) & frontier.explained[rows]
    at = np.flatnonzero(which & (frontier.role[rows] == Role.BUFFER))
    apart = measures["error_eps"] * measures["eps"]
    rank = np.array([one.rank for one in a.tensors])[a.tensor[rows]]
    for place in at[np.argsort(a.order[rows[at]], kind="stable")].tolist():
        row = int(rows[place])
        made = _made(frontier, row, first)
        if made is None:
            continue
        before = (rank == rank[place]) & (a.step[rows] == first) & (a.order[rows] <= made)
        largest = max([LEAST, *apart[before & ~np.isnan(apart)].tolist()])
        if _error(frontier, row, float(apart[place])) > TIMES * largest:
            return row
    return None


def _made(frontier: Frontier, row: int, first: int) -> int | None:
    """When a moment's norm made its last result before the moment's record.

    None where it made none in the first step, or another one in a later step: what came in there
    differs by more than rounding, since parameters were updated in between.
    """
    a = frontier.alignment.a
    module = a.tensors[a.tensor[row]].name.rpartition(".")[0]
    made = series(a, row, "value", module)
    made = made[a.order[made] < a.order[row]]
    return int(a.order[made[-1]]) if len(made) and a.step[made[-1]] == first else None


def _error(frontier: Frontier, row: int, apart: float) -> float:
    """The error of a moment; that of a mean relative to the spread of what it is the mean of.

    A mean of terms that cancel rounds as much as the terms do.
    apart: the error relative to the moment itself.
    """
    a = frontier.alignment.a
    name = a.tensors[a.tensor[row]].name
    if name.endswith(VARIANCE):
        return apart
    beside = series(a, row, "value", f"{name.removesuffix(MEAN)}{VARIANCE}")
    beside = beside[(a.step[beside] == a.step[row]) & (a.pass_index[beside] == a.pass_index[row])]
    try:
        mean, variance = (values(a, one) for one in (row, int(beside[0])))
    except (IndexError, StoreError):
        return 0.0
    if mean is None or variance is None or mean.size != variance.size:
        return 0.0
    size = float(np.linalg.norm(mean))
    return apart * size / math.hypot(size, math.sqrt(max(float(variance.sum()), 0.0)))
