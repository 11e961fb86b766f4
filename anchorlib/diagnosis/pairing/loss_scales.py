"""A loss scale that a program applies by itself, and that no record states.

    (loss * 1024).backward()
    for p in model.parameters(): p.grad /= 1024

A power of two changes exponents alone. So where a power of two is a loss scale, the first step that
differs shows it to the bit: every gradient inside the model is that power of two times the other
run's, nothing else differs, and the gradients that the optimizer takes are equal. A factor that
reaches the optimizer leaves these gradients unequal, and so does a factor that clipping hides: it
adds a constant to the norm. The scale is then treated as if the records stated it.

    loss.sum().backward()
    for p in model.parameters(): p.grad /= count

Any other number rounds. Such a scale is recognised by norms: those of all gradients inside the
model are that number times the other run's, those of the gradients that the optimizer takes are
equal, and no value differs. Rounding would excuse a factor that clipping hides. So the optimizer of
one run must take the gradients as backward made them, which clipping changes, or gradients whose
norm is larger in another step, which no clipping to a norm had cut then: if the optimizer of the
other run takes the same, the factor was taken off by a division. What rounding leaves is judged
like any other difference.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.splits import parameters_of
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.errors import StoreError

__all__ = ["with_loss_scale"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
ROUNDINGS = 32.0
"""By how many eps of float32 a norm may differ by several roundings in a row."""
LOW = 2.0**-7
"""By how much a norm may differ, relatively, in a run that holds types coarser than float32."""
LEAST = 0.1
"""By how much a scale is larger or smaller than 1 at least. Nobody scales a loss by less."""
CLEARLY = 1e-3
"""By which share the norm of another step must be larger: clipped norms differ by far less."""
MOST_ELEMENTS = 1 << 20  # of gradients whose passes are added up
MADE = ("updated", "delta")
DTYPES = ("float32", "float64", "bfloat16", "float16")


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
    exact = factor is not None and scaled[alignment.a_row[first]].all()
    if not (exact and _takes_the_same(alignment, int(step))):
        factor = _rounded_factor(alignment, first, scaled)
    if factor is None:
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


def _rounded_factor(alignment: Alignment, pairs: Array, scaled: Array) -> float | None:
    """The loss scale of B, where it is any number and gradients round; None where there is none.

    pairs: the pairs of the first step that differs which differ.
    scaled: for each row of A, whether it is a gradient that a loss scale multiplies.
    """
    a, rows = alignment.a, alignment.a_row[pairs]
    taken = _is_taken(a)
    made = np.array([tensor.kind in MADE for tensor in a.tensors] or [False], bool)[a.tensor]
    made |= np.array([tensor.kind.startswith("opt.") for tensor in a.tensors], bool)[a.tensor]
    if not (scaled | taken | made)[rows].all():
        return None
    step = int(a.step[rows[0]])
    here = a.step[alignment.a_row] == step
    norms = alignment.a.figures["l2"][alignment.a_row], alignment.b.figures["l2"][alignment.b_row]
    inside, read = here & scaled[alignment.a_row], here & taken[alignment.a_row]
    if not (inside.any() and read.any()):
        return None
    factor = _snapped(*(norm[_first_or_largest(alignment, inside)] for norm in norms))
    if factor is None or not _are_near(alignment, norms[0][inside], norms[1][inside] / factor):
        return None
    if not _are_near(alignment, norms[0][read], norms[1][read]):
        return None
    step_b = int(alignment.b.step[alignment.b_row[pairs[0]]])
    sides = ((a, step), (alignment.b, step_b))
    return factor if any(_takes_as_made(*one) or _takes_less(*one) for one in sides) else None


def _first_or_largest(alignment: Alignment, inside: Array) -> int:
    """The pair of gradients that tells a loss scale best.

    The first gradient of a single number is that of the loss, which low precision does not round.
    Where none was recorded, the largest gradient.
    """
    a, pairs = alignment.a, np.flatnonzero(inside)
    rows = alignment.a_row[pairs]
    single = np.flatnonzero((a.figures["numel"][rows] == 1) & (a.figures["l2"][rows] > 0))
    if len(single):
        return int(pairs[single[np.argmin(a.order[rows[single]])]])
    norm = a.figures["l2"][rows]
    return int(pairs[np.argmax(np.where(np.isfinite(norm), norm, -1.0))])


def _snapped(norm_a: float, norm_b: float) -> float | None:
    """The ratio of the norms of B and A; as a whole number, or one over it, if it is near to one.

    None for a ratio that is no number, or too near to 1 for a loss scale.
    """
    with np.errstate(all="ignore"):
        factor = float(np.float64(norm_b) / np.float64(norm_a))
    if not math.isfinite(factor) or factor <= 0 or abs(math.log(factor)) < LEAST:
        return None
    whole = factor if factor > 1 else 1 / factor
    if abs(whole - round(whole)) <= ROUNDINGS * EPS32 * whole:
        whole = float(round(whole))
    return whole if factor > 1 else 1 / whole


def _are_near(alignment: Alignment, norm_a: Array, norm_b: Array) -> bool:
    """Whether norms agree but for rounding, each measured by the largest one of them.

    A gradient may consist of rounding alone, as that of a bias before a batch norm.
    """
    names = {*alignment.a.dtypes, *alignment.b.dtypes}
    low = any((dtypes.dtype(name).eps or 0.0) > EPS32 for name in names)
    limit = (LOW if low else ROUNDINGS * EPS32) * float(norm_a.max())
    return bool((np.abs(norm_a - norm_b) <= limit).all())


def _takes_as_made(table: Table, step: int) -> bool:
    """Whether an optimizer takes gradients that are the sums of what backward made in a step.

    True where that was seen of one parameter or more, and of all that were looked at. Clipping
    multiplies the gradients of all parameters by one factor.
    """
    taken = np.flatnonzero(_is_taken(table) & (table.step == step))
    seen = False
    for row in taken[np.argsort(table.figures["numel"][taken], kind="stable")].tolist():
        own = table.tensors[table.tensor[row]]
        passes = [
            number
            for number, tensor in enumerate(table.tensors)
            if (tensor.name, tensor.rank, tensor.kind) == (own.name, own.rank, "pass_grad")
        ]
        which = np.isin(table.tensor, passes) & (table.step == step)
        rows = np.flatnonzero(which & (table.attempt == table.attempt[row]))
        if not len(rows) or not table.figures["l2"][row]:
            continue
        if not _is_sum_of(table, row, rows):
            return False
        seen = True
    return seen


def _takes_less(table: Table, step: int) -> bool:
    """Whether an optimizer takes gradients of a larger norm in another step than in this one.

    Clipping leaves no norm above its limit, and the gradients that it cuts have that norm.
    """
    rows = np.flatnonzero(_is_taken(table))
    squares = np.square(table.figures["l2"][rows])
    steps, which, counts = np.unique(table.step[rows], return_inverse=True, return_counts=True)
    norms = np.sqrt(np.bincount(which.reshape(-1), squares, len(steps)))
    at = int(np.searchsorted(steps, step))
    if at == len(steps) or steps[at] != step:
        return False
    comparable = np.isfinite(norms) & (counts == counts[at])
    return bool((norms[comparable] > (1 + CLEARLY) * norms[at]).any())


def _is_sum_of(table: Table, row: int, rows: Array) -> bool:
    """Whether a record is the sum of others but for rounding; False where that is unknown."""
    if len(rows) == 1:
        return bool((table.digest[rows[0]] == table.digest[row]).all())
    every = [row, *rows.tolist()]
    is_read = table.kept[every].all() and table.figures["numel"][row] <= MOST_ELEMENTS
    if not is_read or any(table.dtypes[table.dtype[one]] not in DTYPES for one in every):
        return False
    try:
        taken, *parts = (_values(table, one) for one in every)
    except StoreError:
        return False
    if any(part.shape != taken.shape for part in parts):
        return False
    terms = float(sum(np.linalg.norm(part) for part in parts))
    return bool(np.linalg.norm(taken - sum(parts)) <= ROUNDINGS * EPS32 * terms)


def _values(table: Table, row: int) -> Array:
    blocks = [np.reshape(block, -1) for block in table.read(row, 1 << 20)]
    raw = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    values: Array = dtypes.decode(raw, table.dtypes[table.dtype[row]]).astype(np.float64)
    return values


def _is_taken(table: Table) -> Array:
    """For each row, whether it is a gradient that an optimizer takes."""
    parameters = parameters_of(table)
    takes = [tensor.kind == "grad" and tensor.name in parameters for tensor in table.tensors]
    rows: Array = np.array(takes or [False], bool)[table.tensor]
    return rows


def _takes_the_same(alignment: Alignment, step: int) -> bool:
    """Return whether the gradients that an optimizer reads in a step are recorded, and equal."""
    rows = alignment.a_row
    which = _is_taken(alignment.a)[rows] & (alignment.a.step[rows] == step)
    return bool(which.any() and alignment.equal[which].all())
