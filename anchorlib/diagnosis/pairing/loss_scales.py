"""A loss scale that a program applies by itself, and that no record states.

    (loss * 1024).backward()
    for p in model.parameters(): p.grad /= 1024

A power of two changes exponents alone. So where a power of two is a loss scale, the first step that
differs shows it to the bit: every gradient inside the model is that power of two times the other
run's, nothing else differs, and the gradients that the optimizer takes are equal. A factor that
reaches the optimizer leaves these gradients unequal, and so does a factor that clipping hides: it
adds a constant to the norm. The scale is then treated as if the records stated it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.splits import parameters_of
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["with_loss_scale"]

Array = np.ndarray[Any, Any]


def with_loss_scale(alignment: Alignment) -> Alignment:
    """Return the alignment with the loss scale that B's program applied stated for B's gradients.

    Returns the alignment itself where the first step that differs does not show such a scale.
    """
    a, b = alignment.a, alignment.b
    pairs = alignment.differing
    if not len(pairs) or alignment.merged or not ((a.scale == 1).all() and (b.scale == 1).all()):
        return alignment
    step = a.step[alignment.a_row[pairs]].min()
    first = pairs[a.step[alignment.a_row[pairs]] == step]
    scaled = _is_scaled(a)
    factor = _factor(alignment, first)
    if factor is None or not scaled[alignment.a_row[first]].all():
        return alignment
    if not _takes_the_same(alignment, int(step)):
        return alignment
    rows = alignment.a_row
    later = scaled[rows] & (a.step[rows] >= step)
    scale = b.scale.copy()
    scale[alignment.b_row[later]] = factor
    return replace(alignment, b=replace(b, scale=scale))


def _is_scaled(table: Table) -> Array:
    """Return for each row whether it is a gradient that a loss scale multiplies."""
    parameters = parameters_of(table)
    inside = [
        tensor.kind == "pass_grad" or (tensor.kind == "grad" and tensor.name not in parameters)
        for tensor in table.tensors
    ]
    rows: Array = np.array(inside or [False], bool)[table.tensor]
    return rows


def _factor(alignment: Alignment, pairs: Array) -> float | None:
    """Return the power of two by which the norms of all these pairs differ.

    None if there is none.
    """
    norm_a = alignment.a.figures["l2"][alignment.a_row[pairs]]
    norm_b = alignment.b.figures["l2"][alignment.b_row[pairs]]
    with np.errstate(all="ignore"):
        factors = np.unique(norm_b / norm_a)
    if len(factors) != 1 or not np.isfinite(factors[0]) or factors[0] <= 0:
        return None
    factor = float(factors[0])
    return factor if math.frexp(factor)[0] == 0.5 and factor != 1 else None


def _takes_the_same(alignment: Alignment, step: int) -> bool:
    """Return whether the gradients that an optimizer reads in a step are recorded, and equal."""
    a = alignment.a
    parameters = parameters_of(a)
    takes = [tensor.kind == "grad" and tensor.name in parameters for tensor in a.tensors]
    rows = alignment.a_row
    which = np.array(takes or [False], bool)[a.tensor[rows]] & (a.step[rows] == step)
    return bool(which.any() and alignment.equal[which].all())
