"""How many times a normalisation enlarges the rounding of its input.

    y = (x − mean) / std

x and its mean round in proportion to the size √E[x²], while y is measured in units of the spread
√Var[x]. Where the mean is large beside the spread, the relative rounding of both is
√(E[x²] / Var[x]) times larger in y. x itself rounds where the operations of one stretch hold both
the computation of x and the norm: A recorded x in between, B did not. The mean rounds
in every norm.
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
"""The factor where x is not known: six nets with batch norms had 1.0 to 2.3 at their start."""
MOST_ELEMENTS = 1 << 22
"""Elements of x that are read: bounds memory, in float64."""


def conditioning(frontier: Frontier, row: int) -> float:
    """The factor by which a norm enlarges the rounding of a row's stretch; 1 without a norm."""
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
    if not alone and len(ops) > 1:
        return UNSEEN
    given = [one for one in frontier.parents(row) if a.shape[one] == a.shape[row]]
    if not alone and not given:
        return 1.0
    x = _values(frontier, (alone or given)[0])
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
    """√(mean of E[x²] / Var[x]); both moments are over the axes that are normalised together."""
    with np.errstate(all="ignore"):
        told = (x**2).mean(axes) / x.var(axes)
    told = told[np.isfinite(told)]
    return math.sqrt(float(told.mean())) if told.size else UNSEEN
