"""Where an optimizer is told otherwise behind rounding: a schedule that falls early, in one run.

By the step at which a learning rate or momentum parts, the runs differ already, and their updates
receive that. But what both headers state is no rounding: where the changes that an optimizer makes
are all at once much further apart than they were, at the very step at which it was told otherwise,
that step is an origin of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Parting, partings
from anchorlib.diagnosis.sizes import Measures

__all__ = ["turning"]

Array = np.ndarray[Any, Any]
FAR = 1e-3
"""Of the median update, from which it is more than rounding."""
TIMES = 10.0
"""Times the median of the step before."""
NEAR = 1e-9  # of a setting, which two programs may compute otherwise
WRITTEN = ("foreach", "fused", "capturable", "differentiable")
"""Settings that say how an optimizer is written, not what it computes."""


def turning(found: Frontier, measures: Measures) -> int | None:
    """The first update in the step at which an optimizer is told otherwise; None without."""
    told = [one for one in partings(found.alignment) if one.step > 0 and _matters(one)]
    if not told:
        return None
    step = min(one.step for one in told)
    a = found.alignment.a
    rows = found.alignment.a_row[measures.pair]
    updates = np.array([tensor.kind == "delta" for tensor in a.tensors] or [False], bool)
    apart = measures["error_eps"] * measures["eps"]
    which = updates[a.tensor[rows]] & ~np.isnan(apart)
    here, before = (which & (a.step[rows] == at) for at in (step, step - 1))
    if not here.any() or not updates[a.tensor[found.alignment.a_row[_at(found, step - 1)]]].any():
        return None
    least = float(np.median(apart[before])) if before.any() else 0.0
    if not float(np.median(apart[here])) > max(FAR, TIMES * least):
        return None
    first: int = int(rows[here][np.argmin(a.order[rows[here]])])
    return first


def _at(found: Frontier, step: int) -> Array:
    """The pairs of a step."""
    alignment = found.alignment
    return np.flatnonzero(alignment.a.step[alignment.a_row] == step)


def _matters(one: Parting) -> bool:
    """Whether it changes what is computed."""
    if one.name.rpartition(".")[2] in WRITTEN:
        return False
    if not all(isinstance(side, int | float) for side in (one.a, one.b)):
        return True
    return bool(abs(one.a - one.b) > NEAR * max(abs(one.a), abs(one.b)))
