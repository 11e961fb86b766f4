"""Where an optimizer is told otherwise behind rounding: another eps, a schedule that falls early.

At the step at which a setting parts, the runs mostly differ already, and their updates receive that
difference. But a setting that both headers state is no rounding. So that step is an origin of its
own where its updates are suddenly much further apart than those of the step before; or, for a
setting that differs from the first step on, than the gradients of that step. Where nothing but the
optimizer's class has another name, which may compute the same, parameters have to part by more than
their rounding as well: in low precision an update is hardly more than that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, HistoryParting, partings, settings
from anchorlib.diagnosis.sizes import Measures

__all__ = ["told_before", "turning"]

Array = np.ndarray[Any, Any]
FAR = 1e-3
"""Relative error of the median update from which it is more than rounding."""
TIMES = 10.0
"""How many times the median error of the step before (in the first step, of the gradients) the
median error of updates has to be."""
ROUNDED = 1.0
"""Eps of a parameter by which the addition at the end of an update rounds."""
NEAR = 1e-9  # relative difference of two settings that are one, computed by two programs
WRITTEN = ("foreach", "fused", "capturable", "differentiable")
"""Settings that say how an optimizer is written, not what it computes."""


def turning(frontier: Frontier, measures: Measures) -> int | None:
    """The row of the first update that an optimizer setting sets apart; None where none does."""
    told = [*partings(frontier.alignment), *settings(frontier.alignment)]
    steps = sorted({one.step for one in told if _matters(one)})
    numbers = {one.step for one in told if _matters(one) and "." in one.name}
    turns = (
        _turn(frontier, measures, step)
        for step in steps
        if step in numbers or not _rounds(frontier, measures, step)
    )
    return next((row for row in turns if row is not None), None)


def told_before(frontier: Frontier, row: int) -> bool:
    """Whether an optimizer was told another number before a row whose parameters have no records.

    Everything else that the row was computed from is equal, so that an update made it differ. A
    group of parameters may stand elsewhere among an optimizer's groups.
    """
    a = frontier.alignment.a
    step = int(a.step[row])
    if not (frontier.parameter_lacking[row] and step):
        return False
    told = [*partings(frontier.alignment), *settings(frontier.alignment)]
    return any(
        one.step < step and "." in one.name and _matters(one) and _parts(one.a) != _parts(one.b)
        for one in told
    )


def _parts(setting: Any) -> Any:
    """The values of a setting that differs between groups, whichever group has which."""
    return sorted(map(repr, setting)) if isinstance(setting, list) else setting


def _rounds(frontier: Frontier, measures: Measures, step: int) -> bool:
    """Whether the parameters that a step made are as near as their rounding, by the median."""
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    made = np.array([tensor.kind == "updated" for tensor in a.tensors] or [False], bool)
    error = measures["error_eps"][made[a.tensor[rows]] & (a.step[rows] == step)]
    error = error[~np.isnan(error)]
    return bool(len(error)) and float(np.median(error)) <= ROUNDED


def _turn(frontier: Frontier, measures: Measures, step: int) -> int | None:
    """The row of a step's first update, where updates leap apart in that step; else None."""
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    updates = np.array([tensor.kind == "delta" for tensor in a.tensors] or [False], bool)
    apart = measures["error_eps"] * measures["eps"]
    known = ~np.isnan(apart)
    here = known & updates[a.tensor[rows]] & (a.step[rows] == step)
    earlier = updates if step else np.array([one.kind == "grad" for one in a.tensors], bool)
    at = max(step - 1, 0)
    if not here.any() or not earlier[a.tensor[frontier.alignment.a_row[_at(frontier, at)]]].any():
        return None
    before = known & earlier[a.tensor[rows]] & (a.step[rows] == at)
    least = float(np.median(apart[before])) if before.any() else 0.0
    if not float(np.median(apart[here])) > max(FAR, TIMES * least):
        return None
    first: int = int(rows[here][np.argmin(a.order[rows[here]])])
    return first


def _at(frontier: Frontier, step: int) -> Array:
    """The numbers of the pairs of a step."""
    alignment = frontier.alignment
    return np.flatnonzero(alignment.a.step[alignment.a_row] == step)


def _matters(one: HistoryParting) -> bool:
    """Whether a setting that differs changes what the optimizer computes."""
    if one.name.rpartition(".")[2] in WRITTEN:
        return False
    if not all(isinstance(side, int | float) for side in (one.a, one.b)):
        return True
    return bool(abs(one.a - one.b) > NEAR * max(abs(one.a), abs(one.b)))
