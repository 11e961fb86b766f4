"""Where a batch norm hides a factor or a shift of its input, and its running moments show it.

    y = (x − mean) / std;   running_mean += m·(mean − running_mean);   running_var likewise

If B's x is A's x times a factor, y is equal but for rounding, and so is everything that follows
from y. The running moments differ by that factor. Rounding errors of x have either sign, so that
they nearly cancel in a mean over x. So where the moments differ far more than y and than every
record before y, x differs by more than rounding.
"""

from __future__ import annotations

import math

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role
from anchorlib.diagnosis.judgement.rounding.bounds import TOLERANCE
from anchorlib.diagnosis.judgement.rounding.formats import type_eps
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["hidden_by_a_norm"]

EPS32 = 2.0**-23
MEAN, VARIANCE = "running_mean", "running_var"
TIMES = 10.0
"""How many times as large as every error up to the norm's result its moments' error must be."""
LEAST = TOLERANCE * EPS32
"""The least error that counts as the largest error before: the rounding of float32."""
LEAST_LOW = 0.5
"""The same in eps of the format of the norm's result where that is coarser: one rounding of its
input, which one run alone may record. A compiled net under autocast on an H100 had moments 0.08 eps
of bfloat16 from the other's."""


def hidden_by_a_norm(frontier: Frontier, measures: Measures) -> int | None:
    """Return A's row of the first running moment that shows a fault in the first step that differs.

    None where no moment does. A pass records a buffer as it is when the pass begins, so that the
    moments of a step are records of its later passes, or of the next step.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    if not len(rows):
        return None
    first = int(a.step[rows].min())
    moments = a.where(lambda tensor: tensor.name.endswith((MEAN, VARIANCE)))
    which = moments[rows] & (a.step[rows] <= first + 1) & frontier.explained[rows]
    at = np.flatnonzero(which & (frontier.role[rows] == Role.BUFFER))
    apart = measures["error_eps"] * measures["eps"]
    rank = a.rank[rows]
    for place in at[np.argsort(a.order[rows[at]], kind="stable")].tolist():
        row = int(rows[place])
        made = _made(frontier, row, first)
        if made is None:
            continue
        before = (rank == rank[place]) & (a.step[rows] == first) & (a.order[rows] <= made)
        if np.isnan(apart[before]).any():
            continue  # a record of another shape, as of another batch: the norm may hide nothing
        least = max(LEAST, LEAST_LOW * _coarse(frontier, row))
        largest = max([least, *apart[before].tolist()])
        if _error(frontier, row, float(apart[place])) > TIMES * largest:
            return row
    return None


def _coarse(frontier: Frontier, row: int) -> float:
    """Return the eps of the last result of a norm before a moment's record if coarse, else 0.0.

    row: A's row of the moment. A format is coarse if it is coarser than float32.
    """
    a = frontier.alignment.a
    module = a.tensors[a.tensor[row]].name.rpartition(".")[0]
    made = series(a, row, "value", module)
    made = made[a.order[made] < a.order[row]]
    eps = type_eps(a, int(made[-1])) if len(made) else 0.0
    return eps if eps > EPS32 else 0.0


def _made(frontier: Frontier, row: int, first: int) -> int | None:
    """Return the place in A's order of execution of a norm's last result before a moment's record.

    None where that result is not of the step `first`, the first step that differs: the input of a
    result in a later step differs by more than rounding, since parameters were updated in between.
    row: A's row of the moment.
    """
    a = frontier.alignment.a
    module = a.tensors[a.tensor[row]].name.rpartition(".")[0]
    made = series(a, row, "value", module)
    made = made[a.order[made] < a.order[row]]
    return int(a.order[made[-1]]) if len(made) and a.step[made[-1]] == first else None


def _error(frontier: Frontier, row: int, apart: float) -> float:
    """Return the relative error of a moment; that of a mean is relative to the values' spread, too.

    A mean of terms that cancel rounds as much as the terms do, however small the mean is. So its
    error is relative to the norm of mean and standard deviation together. 0.0 for a mean where its
    values, or those of its variance, are not known.
    apart: the error relative to the moment itself.
    """
    a = frontier.alignment.a
    name = a.tensors[a.tensor[row]].name
    if name.endswith(VARIANCE):
        return apart
    beside = series(a, row, "value", f"{name.removesuffix(MEAN)}{VARIANCE}")
    beside = beside[(a.step[beside] == a.step[row]) & (a.pass_index[beside] == a.pass_index[row])]
    try:
        mean, variance = (values(a, at) for at in (row, int(beside[0])))
    except (IndexError, StoreError):
        return 0.0
    if mean is None or variance is None or mean.size != variance.size:
        return 0.0
    size = float(np.linalg.norm(mean))
    return apart * size / math.hypot(size, math.sqrt(max(float(variance.sum()), 0.0)))
