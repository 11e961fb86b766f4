"""Whether an optimizer setting that differs is a cause of its own: `turning` and `parted_since`.

Examples are another eps, and a schedule that lowers the learning rate early. At the step from which
a setting differs, the runs mostly differ already by rounding, and their updates inherit that. But a
difference of settings that both headers state is no rounding. So `turning` makes the step's first
update an origin (a difference that no earlier difference explains) where updates are suddenly much
further apart than those of the step before. For a setting that differs from the first step on, the
gradients of that step take the place of those updates. Where only the name of the optimizer's class
differs, both classes may compute equal updates. Then parameters have to part by more than their
rounding as well, since in low precision an update is hardly more than that rounding. `parted_since`
gives the first step with other settings, for values whose parameters have no records.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, HistoryDivergence, partings, settings
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
    """Return A's row of the first update that makes a differing optimizer setting a cause; or None.

    That is the first `delta` record of a step from which some setting differs, and in which updates
    are much further apart than in the step before (`_turn`). Of several such steps the first
    counts.
    """
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
    """Return the first step from which an optimizer's settings differ in the runs; inf without one.

    An update from that step on may explain a later record that differs, if a parameter without
    records is all that the record was computed from besides equal records. The order of an
    optimizer's groups does not count as a setting, nor does the optimizer's class.
    """
    differing = [*partings(frontier.alignment), *settings(frontier.alignment)]
    steps = [
        parting.step
        for parting in differing
        if "." in parting.name and _matters(parting) and _parts(parting.a) != _parts(parting.b)
    ]
    return min(steps, default=math.inf)


def _parts(setting: Any) -> Any:
    """Return a setting in a form to compare: a list (one value for each group) as sorted texts."""
    return sorted(map(repr, setting)) if isinstance(setting, list) else setting


def _rounds(frontier: Frontier, measures: Measures, step: int) -> bool:
    """Return whether the median error of the updated parameters of a step is mere rounding.

    False where no `updated` record of the step was measured.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    error = measures["error_eps"][a.of_kind("updated")[rows] & (a.step[rows] == step)]
    error = error[~np.isnan(error)]
    return bool(len(error)) and float(np.median(error)) <= ROUNDED


def _turn(frontier: Frontier, measures: Measures, step: int) -> int | None:
    """Return A's row of the first differing update of a step; None unless updates leap apart there.

    They leap apart where their median error exceeds FAR, and TIMES the median error of the updates
    of the step before (in step 0: of that step's gradients). None, too, if that step before has no
    such pairs.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    updates = a.of_kind("delta")
    apart = measures["error_eps"] * measures["eps"]
    known = ~np.isnan(apart)
    here = known & updates[rows] & (a.step[rows] == step)
    earlier = updates if step else a.of_kind("grad")
    at = max(step - 1, 0)
    if not here.any() or not earlier[frontier.alignment.a_row[_at(frontier, at)]].any():
        return None
    before = known & earlier[rows] & (a.step[rows] == at)
    least = float(np.median(apart[before])) if before.any() else 0.0
    if not float(np.median(apart[here])) > max(FAR, TIMES * least):
        return None
    first: int = int(rows[here][np.argmin(a.order[rows[here]])])
    return first


def _at(frontier: Frontier, step: int) -> Array:
    """Return the indices of the alignment's pairs in a step of A."""
    alignment = frontier.alignment
    return np.flatnonzero(alignment.a.step[alignment.a_row] == step)


def _matters(parting: HistoryDivergence) -> bool:
    """Return whether a setting that differs changes what the optimizer computes.

    False for the settings in WRITTEN, such as `fused`, and for numbers that differ by rounding.
    """
    if parting.name.rpartition(".")[2] in WRITTEN:
        return False
    return not _are_near(parting.a, parting.b)


def _are_near(a: Any, b: Any) -> bool:
    """Return whether two settings are equal but for rounding; lists, if all their values are."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_are_near, a, b))
    if not all(isinstance(side, int | float) for side in (a, b)):
        return bool(a == b)
    return bool(abs(a - b) <= NEAR * max(abs(a), abs(b)))
