"""A gradient that was not cleared: it holds more than the backward passes of its step added.

Two signs distinguish such a gradient from one that was clipped, scaled or reduced, which changes
only its length:

    B − A is what B's optimizer took the step before,       zero_grad() was not called
    or that plus what passes have added to it since
    A is the sum of its step's pass_grads, B is not,        something was there before the first
    nor a multiple of that sum                              pass of the step
    B is the sum of the step's last pass_grads alone,       zero_grad() was called between passes
    or a multiple of that sum

Where such a gradient holds its sum and a multiple of the parameter, the program decays weights.
Where a gradient equals the sum except for elements that stand at one limit, it was clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.judgement.sparse_sums import INDICES, summed
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.errors import StoreError

__all__ = ["LACKS", "leftover"]

Array = np.ndarray[Any, Any]
NEAR = 1e-3  # share of a norm by which an equation may be off, besides rounding
ROUNDINGS = 8.0  # eps by which a sum of gradients may be off
PARALLEL = 1e-5  # largest cosine distance between a gradient and its multiple
FEW = 8  # elements: in smaller tensors, equations hold to NEAR by chance, and factors are found
CERTAIN = 1e-5  # eps up to which an equation of a few elements does not hold by chance
MOST_ELEMENTS = 1 << 22
MOST_PASSES = 32
FITS = 1e-5  # share of a norm by which a sum of two parts with factors may be off
MANY = 32  # elements: in fewer, two factors may fit by chance
HELD = 0.05  # share of a gradient from which a remainder is larger than all roundings

LACKS = " lacks the first "
"""Words by which the clause on a gradient that was cleared between its passes is recognised."""


def leftover(alignment: Alignment, pair: int, eps: float) -> str:
    """Return a clause if one run alone left a gradient uncleared, or changed it otherwise; else "".

    Other changes are: clearing it between passes, clipping each of its elements, and adding a
    multiple of the parameter (weight decay).
    pair: the index of the pair of `grad` records in the alignment. eps: that of the coarser dtype
    of the two. "" too where values are not stored, shapes differ, or the tensor is too large, or
    too small for a coarse dtype.
    """
    sides = [(alignment.a, int(alignment.a_row[pair])), (alignment.b, int(alignment.b_row[pair]))]
    shapes = {table.shapes[table.shape[row]] for table, row in sides}
    if alignment.a.tensors[alignment.a.tensor[sides[0][1]]].name.endswith(INDICES):
        return _added_sparse(sides)
    if len(shapes) > 1 or any(table.figures["numel"][row] > MOST_ELEMENTS for table, row in sides):
        return ""
    try:
        held = [values(table, row) for table, row in sides]
        if held[0] is None or held[1] is None:
            return ""
        few = len(held[0]) < FEW
        if few and eps > CERTAIN:
            return ""
        near = NEAR * (not few) + ROUNDINGS * eps
        return (
            _added(sides, held, near)
            or _cleared_between(sides, held)
            or _not_summed(sides, held, near)
        )
    except StoreError:
        return ""


def _added(sides: list[tuple[Table, int]], held: list[Any], near: float) -> str:
    """Return a clause if one run's gradient still contains what it held a step earlier; else "".

    That is so where this run's gradient is the other run's plus that remainder, perhaps each times
    a factor. It is also so where this run's gradient is a multiple of its passes' sum plus that
    remainder, and the other run's gradient is not made like that.
    sides: each run's table and row. held: the two gradients. near: the share of a norm by which the
    sum may be off.
    """
    for which, (own, other) in (("B", (1, 0)), ("A", (0, 1))):
        table, row = sides[own]
        more = held[own] - held[other]
        added = any(
            _close(more, before, near) or _mixed(held[own], held[other], before)
            for before in _before(table, row)
        )
        holds = [_holds(sides[at], held[at], near) for at in (own, other)]
        if added or holds == [True, False]:
            one = "A" if which == "B" else "B"
            return f"zero_grad? {which} takes {one}'s gradient and its own of the step before"
    return ""


def _mixed(value: Array, own: Array, before: Array) -> bool:
    """Return whether a gradient is the other run's gradient plus a remainder, each times a factor.

    value: the gradient. own: the other run's gradient. before: this run's gradient a step earlier.

    Clipping makes each of the three tensors smaller by a factor of its own. In gradients of many
    elements, two factors do not fit by chance. False for fewer than MANY elements, and where the
    two parts are multiples of one another, since factors then always fit.
    """
    if not len(value) == len(own) == len(before) >= MANY or _off_line(own, before) <= PARALLEL:
        return False
    parts = np.stack([own, before], axis=1)
    factors = np.linalg.lstsq(parts, value, rcond=None)[0]
    held = float(factors[1] * np.linalg.norm(before)) > HELD * float(np.linalg.norm(value))
    return bool(held and factors[0] > 0 and _close(value, parts @ factors, FITS))


def _added_sparse(sides: list[tuple[Table, int]]) -> str:
    """Return a clause if a run's sparse gradient is the other run's plus its own of a step before.

    "" where this holds of neither run. sides: each run's table, and the row of the gradient's
    indices.
    """
    for which, (own, other) in (("B", (1, 0)), ("A", (0, 1))):
        table, row = sides[own]
        rows = series(table, row, "grad")
        rows = rows[table.step[rows] < table.step[row]]
        if not len(rows):
            continue
        try:
            more, less = summed(table, row), summed(*sides[other])
            before = summed(table, int(rows[-1]))
        except StoreError:
            return ""
        if more is None or less is None or before is None:
            continue
        where = np.concatenate([sums.indices for sums in (more, less, before)], axis=1)
        where = np.unique(where, axis=1)
        if _close(more.at(where) - less.at(where), before.at(where), NEAR):
            other_run = "A" if which == "B" else "B"
            return f"zero_grad? {which} takes {other_run}'s gradient and its own of the step before"
    return ""


def _holds(side: tuple[Table, int], value: Array, near: float) -> bool:
    """Return whether a gradient is a multiple of its passes' sum plus a remainder of earlier steps.

    That is so where the gradient was not cleared, and was clipped or scaled afterwards.
    side: the run's table and row. value: the gradient. near: the share of a norm by which the sum
        may be off.
    """
    summed = _passes(*side)
    return any(_is_both(value, summed, before, near) for before in _before(*side))


def _is_both(value: Array, summed: Array | None, before: Array, near: float) -> bool:
    if summed is None or not len(value) == len(summed) == len(before):
        return False
    both = summed + before
    size = float(both @ both)
    factor = float(both @ value) / size if size and len(value) >= FEW else 0.0
    large = np.linalg.norm(before) > HELD * np.linalg.norm(both)
    return factor > 0 and bool(large) and _close(value, factor * both, near)


def _not_summed(sides: list[tuple[Table, int]], held: list[Any], near: float) -> str:
    """Return a clause if one run's gradient alone is not a multiple of its passes' sum; else "".

    The clause names clipping of elements, or weight decay, where that explains the gradient. "" too
    in runs of several ranks. sides: each run's table and row. held: the two gradients. near: the
    share of a norm by which a sum may be off.
    """
    if any(len({tensor.rank for tensor in table.tensors}) > 1 for table, _ in sides):
        return ""  # a reduction over ranks is no sum of one rank's passes
    sums = [_passes(table, row) for table, row in sides]
    known = [(value, one) for value, one in zip(held, sums, strict=True) if one is not None]
    summed = [_close(value, one, near) for value, one in known]
    if len(summed) < 2 or all(summed):
        return ""
    apart = [
        not close and _off_line(*one) > PARALLEL for close, one in zip(summed, known, strict=True)
    ]
    if apart[0] == apart[1]:
        return ""
    odd = apart.index(True)
    limit = _limit(*known[odd], near)
    if limit:
        return f"{'AB'[odd]} clips each element of the gradient to {limit:.4g}"
    if not any(summed):
        return ""
    if times := _times_parameter(*sides[odd], *known[odd]):
        return f"{'AB'[odd]} adds {times:.4g} times the parameter to its gradient: weight decay?"
    return f"zero_grad? {'AB'[odd]}'s gradient alone is not the sum of its step's backward passes"


def _times_parameter(table: Table, row: int, value: Array, summed: Array) -> float | None:
    """Return f where a gradient is its passes' sum plus f times its parameter; None if it is not.

    value: the gradient. summed: the sum of its passes. None, too, where the parameter is not
    recorded.
    """
    rows = series(table, row, "value")
    rows = rows[table.step[rows] == table.step[row]]
    parameter = values(table, int(rows[0])) if len(rows) else None
    if parameter is None or len(parameter) != len(value) or len(value) < FEW:
        return None
    added, size = value - summed, float(parameter @ parameter)
    times = float(added @ parameter) / size if size else 0.0
    is_multiple = np.linalg.norm(added - times * parameter) <= NEAR * np.linalg.norm(added)
    return times if times and is_multiple else None


def _cleared_between(sides: list[tuple[Table, int]], held: list[Any]) -> str:
    """Return a clause if one run's gradient alone lacks the first passes of its step; else "".

    Clipping and scaling multiply a sum by a factor, and in gradients of few elements some factor
    always fits: such gradients are left out.
    sides: each run's table and row. held: the two gradients.
    """
    lacking = []
    for side, value in zip(sides, held, strict=True):
        parts = _parts(*side, every_phase=True)
        if not parts or len(parts) > MOST_PASSES or len(value) < FEW:
            return ""
        sums = np.cumsum(parts[::-1], axis=0)[::-1]
        apart = [_off_line(value, one) for one in sums]
        least = int(np.argmin(apart))
        if apart[least] > PARALLEL:
            return ""
        lacking.append(least)
    if (lacking[0] == 0) == (lacking[1] == 0):
        return ""
    which = 0 if lacking[0] else 1
    passes = f"{lacking[which]} pass{'es' * (lacking[which] > 1)}"
    return f"zero_grad? {'AB'[which]}'s gradient{LACKS}{passes} of its step"


def _limit(value: Array, summed: Array, near: float) -> float:
    """Return the magnitude at which the elements of a gradient were clipped; 0.0 if they were not.

    value: the gradient. summed: the sum of its passes, before clipping.
    """
    limit = float(np.abs(value).max(initial=0.0))
    cut = np.clip(summed, -limit, limit)
    reached = int((np.abs(summed) >= limit * (1 - near)).sum())
    return limit if reached > 1 and _close(value, cut, near) else 0.0


def _before(table: Table, row: int) -> Iterator[Array]:
    """Yield the contents of a gradient at moments since its optimizer's last step before this row.

    First comes the gradient that the optimizer read, then that gradient with the contribution of
    each pass since then: where two optimizers step in one step, the passes of the second optimizer
    add to the gradients that the first has read. Last comes what the last pass alone added: an
    optimizer that calls a closure (LBFGS) clears the gradients before each pass.
    """
    rows = series(table, row, table.tensors[table.tensor[row]].kind)
    rows = rows[table.step[rows] < table.step[row]]
    held = values(table, int(rows[-1])) if len(rows) else None
    if held is None:
        return
    yield held
    added = series(table, row, "pass_grad")
    since = (table.order[added] > table.order[rows[-1]]) & (table.order[added] < table.order[row])
    for row_of_pass in added[since][:MOST_PASSES].tolist():
        part = values(table, row_of_pass)
        if part is None:
            return
        held = held + part
        yield held
    last = added[table.step[added] < table.step[row]][-1:]
    part = values(table, int(last[0])) if len(last) else None
    if part is not None:
        yield part


def _passes(table: Table, row: int) -> Array | None:
    """Return the sum of the `pass_grad` records of a row's parameter in the row's step.

    None without any such record, or where the values of one are not known.
    """
    parts = _parts(table, row)
    return sum(parts[1:], start=parts[0]) if parts else None


def _parts(table: Table, row: int, *, every_phase: bool = False) -> list[Array] | None:
    """Return the values of the `pass_grad` records of a row's parameter in its step, in order.

    [] without any such record; None where the values of one are not known.
    every_phase: whether passes through a model in eval mode are included, as those that sample by
        it before it is trained.
    """
    added = series(table, row, "pass_grad", every_phase=every_phase)
    here = (table.step[added] == table.step[row]) & (table.order[added] < table.order[row])
    parts = []
    for row_of_pass in added[here].tolist():
        part = values(table, row_of_pass)
        if part is None:
            return None
        parts.append(part)
    return parts


def _close(made: Array, goal: Array, near: float) -> bool:
    size = float(np.linalg.norm(goal))
    return size > 0 and len(made) == len(goal) and float(np.linalg.norm(made - goal)) <= near * size


def _off_line(left: Array, right: Array) -> float:
    """Return the cosine distance of two tensors, up to the sign of one of them.

    It is 0 where one tensor is a multiple of the other, and 1 where one is all zero.
    """
    size = float(np.linalg.norm(left) * np.linalg.norm(right))
    return 1 - abs(float(left @ right)) / size if size else 1.0
