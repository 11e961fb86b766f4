"""How much larger a normalisation makes the rounding of what it is given.

    y = (x − mean) / std

x rounds in proportion to its own size, and y is in units of its spread: where the mean is large
beside that, rounding of x is as much larger beside y, √(E[x²] / Var[x]) times. That matters where
one stretch holds both: A recorded x, B computed it elsewhere and recorded it not.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import UNMATCHED, Frontier
from anchorlib.diagnosis.sizes import read
from anchorlib.errors import StoreError

__all__ = ["conditioning"]

Array = np.ndarray[Any, Any]
NORM = re.compile(r"(batch|layer|group|instance|rms)_?norm", re.IGNORECASE)
OF_CHANNELS = re.compile(r"batch|instance|group", re.IGNORECASE)
UNSEEN = 2.0
"""The same where x is not known: of six nets with batch norms, at their start, 1.0 to 2.3."""
MOST_ELEMENTS = 1 << 22
"""Of x; bounds memory, in float64."""


def conditioning(frontier: Frontier, row: int) -> float:
    """How many times larger the rounding of a stretch that ends in a norm is; 1 where none does."""
    ops = frontier.ancestry(row).ops
    norms = [op for op in ops if NORM.search(op)]
    a = frontier.alignment.a
    if not norms or a.tensors[a.tensor[row]].kind != "value":
        return 1.0
    alone = [
        one
        for one in frontier.parents(row)
        if frontier.status[one] == UNMATCHED and a.shape[one] == a.shape[row]
    ]
    if not alone:
        return UNSEEN if len(ops) > 1 else 1.0
    x = _values(frontier, alone[0])
    if x is None:
        return UNSEEN
    channels = OF_CHANNELS.search(norms[0]) and x.ndim > 1
    return _of(x, tuple(n for n in range(x.ndim) if n != 1) if channels else (x.ndim - 1,))


def _values(frontier: Frontier, row: int) -> Array | None:
    a = frontier.alignment.a
    if not a.kept[row] or a.figures["numel"][row] > MOST_ELEMENTS:
        return None
    try:
        return read(a, row).astype(np.float64).reshape(a.shapes[a.shape[row]])
    except StoreError:
        return None


def _of(x: Array, axes: tuple[int, ...]) -> float:
    """√(mean of E[x²] / Var[x]), each over these axes, which are normalised together."""
    with np.errstate(all="ignore"):
        told = (x**2).mean(axes) / x.var(axes)
    told = told[np.isfinite(told)]
    return math.sqrt(float(told.mean())) if told.size else UNSEEN
