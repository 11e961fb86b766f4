"""Optimizer settings that differ between runs that rounding has set apart before.

Examples are another eps, and a schedule that lowers the learning rate early. At the step from which
a setting differs, the runs mostly differ already, and their updates inherit that difference. But a
difference of settings that both headers state is no rounding. So the step is an origin of its own
where its updates are suddenly much further apart than the updates of the step before. For a setting
that differs from the first step on, the gradients of that step take the place of those updates.
Where only the name of the optimizer's class differs, both classes may compute the same. Then
parameters have to part by more than their rounding as well, since in low precision an update is
hardly more than that rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, HistoryParting, partings, settings
from anchorlib.diagnosis.sizes import Measures

__all__ = ["parted_since", "turning"]

Array = np.ndarray[Any, Any]
FAR = 1e-3
"""The relative error of the median update from which the error is more than rounding."""
TIMES = 10.0
"""How many times as large the median error of updates has to be as the median error of the updates
of the step before, or in the first step as that of the gradients."""
ROUNDED = 1.0
"""By how many eps of the parameter the addition at the end of an update rounds."""
NEAR = 2.0**-24
"""The relative difference of settings that are equal but for rounding: a schedule that was computed
otherwise, or a learning rate in a float32 tensor (`capturable` asks for one) beside the number."""
WRITTEN = ("foreach", "fused", "capturable", "differentiable")
"""Settings that say how an optimizer is written, not what it computes."""


def turning(frontier: Frontier, measures: Measures) -> int | None:
    """Return the row of the first update that an optimizer setting sets apart; None without one."""
    differing = [*partings(frontier.alignment), *settings(frontier.alignment)]
    steps = sorted({parting.step for parting in differing if _matters(parting)})
    numbers = {parting.step for parting in differing if _matters(parting) and "." in parting.name}
    turns = (
        _turn(frontier, measures, step)
        for step in steps
        if step in numbers or not _rounds(frontier, measures, step)
    )
    return next((row for row in turns if row is not None), None)


def parted_since(frontier: Frontier) -> float:
    """The first step that an optimizer makes with settings that differ; infinite without one.

    Where a parameter has no records and everything else that a later record was computed from is
    equal, an update from that step on has made it differ. The order of an optimizer's groups does
    not count as a setting.
    """
    differing = [*partings(frontier.alignment), *settings(frontier.alignment)]
    steps = [
        parting.step
        for parting in differing
        if "." in parting.name and _matters(parting) and _parts(parting.a) != _parts(parting.b)
    ]
    return min(steps, default=math.inf)


def _parts(setting: Any) -> Any:
    """The values of a setting; for a setting with a value for each group, in sorted order."""
    return sorted(map(repr, setting)) if isinstance(setting, list) else setting


def _rounds(frontier: Frontier, measures: Measures, step: int) -> bool:
    """Whether the parameters after a step differ by no more than their rounding, by the median."""
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    made = np.array([tensor.kind == "updated" for tensor in a.tensors] or [False], bool)
    error = measures["error_eps"][made[a.tensor[rows]] & (a.step[rows] == step)]
    error = error[~np.isnan(error)]
    return bool(len(error)) and float(np.median(error)) <= ROUNDED


def _turn(frontier: Frontier, measures: Measures, step: int) -> int | None:
    """Return the row of a step's first update, where updates leap apart in that step; else None."""
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    updates = np.array([tensor.kind == "delta" for tensor in a.tensors] or [False], bool)
    apart = measures["error_eps"] * measures["eps"]
    known = ~np.isnan(apart)
    here = known & updates[a.tensor[rows]] & (a.step[rows] == step)
    earlier = updates if step else np.array([tensor.kind == "grad" for tensor in a.tensors], bool)
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
    """Return the indices of the alignment's pairs in a step of A."""
    alignment = frontier.alignment
    return np.flatnonzero(alignment.a.step[alignment.a_row] == step)


def _matters(parting: HistoryParting) -> bool:
    """Return whether a setting that differs changes what the optimizer computes."""
    if parting.name.rpartition(".")[2] in WRITTEN:
        return False
    return not _are_near(parting.a, parting.b)


def _are_near(a: Any, b: Any) -> bool:
    """Whether two settings are equal but for rounding; of lists, as of groups, all their values."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_are_near, a, b))
    if not all(isinstance(side, int | float) for side in (a, b)):
        return bool(a == b)
    return bool(abs(a - b) <= NEAR * max(abs(a), abs(b)))
