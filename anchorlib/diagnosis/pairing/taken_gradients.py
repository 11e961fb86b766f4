"""Whether the gradients that optimizers take show that clipping did not remove a factor.

An optimizer takes a gradient where it reads a parameter's gradient in its step. Suppose that one
run's gradients were multiplied by a factor. The program may have divided them by this factor, its
loss scale, before the optimizer; or it may have clipped them to a norm, which removes any factor,
also one that is a fault. In both cases the runs' optimizers take equal gradients but for rounding.
These functions look for records that rule clipping out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.splits import parameters_of
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.errors import StoreError

__all__ = ["EPS32", "FLOATS", "ROUNDINGS", "is_taken", "rules_out_clipping", "takes_the_same"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
ROUNDINGS = 32.0
"""By how many eps of float32 a norm may differ by several roundings in a row."""
CLEARLY = 1e-3
"""By which share the norm of another step must be larger: clipped norms differ by far less."""
CLIPPING = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm by which it divides."""
MOST_ELEMENTS = 1 << 20  # of gradients whose values are read
ENOUGH = 64
"""From how many elements on it shows whether a tensor was multiplied once or more often."""
MOST_PASSES = 8  # whose gradients may make up what an optimizer takes
TINY = 1e-30
"""Smaller elements tell nothing about the number by which they were multiplied."""
UNKNOWN, ONCE, OFTEN = 0, 1, 2
FLOATS = ("float32", "float64", "bfloat16", "float16")


def rules_out_clipping(alignment: Alignment, step: int) -> bool:
    """Return whether records show that in a step no clipping removed a factor between the runs.

    The factor is that by which the gradients of one run were multiplied. step: as A counts steps.
    """
    sides = (alignment.a, step), (alignment.b, step + alignment.step_offset)
    if _shows_clipping(alignment, step):
        return True
    if any(takes(*side) for side in sides for takes in (_takes_as_made, _takes_less)):
        return True
    if any(_takes_a_share(*side) for side in sides):
        return True
    return sorted(_times_multiplied(*side) for side in sides) == [ONCE, OFTEN]


def takes_the_same(alignment: Alignment, step: int) -> bool:
    """Return whether the gradients that optimizers take in a step are recorded in pairs, all equal.

    step: as A counts steps.
    """
    rows = alignment.a_row
    which = is_taken(alignment.a)[rows] & (alignment.a.step[rows] == step)
    return bool(which.any() and alignment.equal[which].all())


def is_taken(table: Table) -> Array:
    """Return for each row whether an optimizer takes it: whether it is a parameter's `grad`."""
    parameters = parameters_of(table)
    return table.where(lambda tensor: tensor.kind == "grad" and tensor.name in parameters)


def _takes_as_made(table: Table, step: int) -> bool:
    """Return whether an optimizer takes the sums of the gradients that backward made in a step.

    Then nothing was clipped: clipping multiplies the gradients of all parameters by one factor.
    True if the gradient of one parameter or more could be looked at, and each is the sum. step: as
    the table's run counts steps.
    """
    seen = False
    for row, rows in _taken_and_made(table, step):
        if not _is_sum_of(table, row, rows):
            return False
        seen = True
    return seen


def _times_multiplied(table: Table, step: int) -> int:
    """Return how often gradients were multiplied before the optimizer: ONCE, OFTEN or UNKNOWN.

    ONCE is the answer for clipping alone, too: it multiplies all elements of a gradient by one
    number, and rounds each product once. Where a loss scale was taken off before, each element was
    rounded twice, so that no single number leads from the gradients that backward made to those
    that the optimizer takes: OFTEN. An optimizer takes the sum over all passes, or over the last
    passes alone where an inner loop made the other gradients or they were cleared: all these sums
    are tried. UNKNOWN where parameters disagree, and where no gradient of ENOUGH elements is
    stored.
    """
    answers: set[bool | None] = set()
    for row, rows in _taken_and_made(table, step):
        made = _read_floats(table, [row, *rows[-MOST_PASSES:].tolist()])
        if made is not None:
            taken, *parts = made
            each = {_is_multiple(taken, parts[first:]) for first in range(len(parts))}
            answers.add(True if True in each else False if False in each else None)
    answers.discard(None)
    if len(answers) != 1:
        return UNKNOWN
    return ONCE if answers == {True} else OFTEN


def _is_multiple(taken: Array, parts: Sequence[Array]) -> bool | None:
    """Return whether a single number times the sum of `parts` rounds to `taken` in all elements.

    Each element bounds that number from below and above: the element of `taken` lies within half a
    spacing of float32 of the product. The parts are added up in float32, as backward adds them.
    None where shapes differ, where fewer than ENOUGH elements are large enough to bound the number,
    and where the program did more to the gradient than to multiply it, as to take a part of its
    direction away: then no number is near to all ratios of elements.
    taken: the gradient that an optimizer takes. parts: gradients of single passes.
    """
    if any(part.shape != taken.shape for part in parts):
        return None
    added = np.zeros(taken.shape, np.float32)
    for part in parts:
        added += part.astype(np.float32)
    made, size = added.astype(np.float64), np.abs(taken)
    tells = (size > TINY) & (np.abs(made) > TINY)
    if tells.sum() < ENOUGH:
        return None
    made, size, sign = np.abs(made[tells]), size[tells], np.sign(made[tells] * taken[tells])
    ratios = size / made
    if (sign != sign[0]).any() or ratios.max() - ratios.min() > ROUNDINGS * EPS32 * ratios.max():
        return None
    half = np.spacing(size.astype(np.float32)).astype(np.float64) / 2
    least, most = ((size - half) / made).max(), ((size + half) / made).min()
    return bool(least <= most)


def _takes_less(table: Table, step: int) -> bool:
    """Return whether an optimizer takes gradients of a larger norm in another step than in `step`.

    Then clipping cut nothing in `step`: gradients that are cut have the largest norm that clipping
    allows. Only steps with as many gradients are compared.
    """
    norms = _norms_of_steps(table, is_taken(table))
    if step not in norms:
        return False
    own, count = norms[step]
    return any(norm > (1 + CLEARLY) * own and many == count for norm, many in norms.values())


def _takes_a_share(table: Table, step: int) -> bool:
    """Return whether an optimizer takes an equal share of what backward made in another step too.

    The share is the norm of the gradients that are taken over the norm of those that backward made.
    Clipping takes a smaller share of larger gradients, so steps with gradients of equal norms show
    nothing. Steps in which gradients of several passes are added up are not compared.
    """
    taken, made = (
        _norms_of_steps(table, which) for which in (is_taken(table), table.of_kind("pass_grad"))
    )
    if step not in taken:
        return False
    shares = {
        at: (norm / made[at][0], made[at][0])
        for at, (norm, count) in taken.items()
        if at in made and made[at][1] == count == taken[step][1] and made[at][0] > 0
    }
    if step not in shares:
        return False
    share, size = shares[step]
    return any(
        abs(other / share - 1) <= ROUNDINGS * EPS32 and abs(norm / size - 1) > CLEARLY
        for other, norm in shares.values()
    )


def _shows_clipping(alignment: Alignment, step: int) -> bool:
    """Return whether the bits of the gradients that are taken show that clipping removed no factor.

    torch adds CLIPPING to the norm by which it divides. If norms are small, that constant counts,
    and a factor between the runs would change the bits of clipped gradients. True where norms are
    that small and the optimizers of both runs nevertheless take equal bits.
    """
    step_b = step + alignment.step_offset
    if not takes_the_same(alignment, step):
        return False
    shifts = []
    for table, at in ((alignment.a, step), (alignment.b, step_b)):
        norms = _norms_of_steps(table, table.of_kind("pass_grad"))
        taken = _norms_of_steps(table, is_taken(table))
        if at not in norms or at not in taken or norms[at][1] != taken[at][1]:
            return False
        shifts.append(CLIPPING / norms[at][0] if norms[at][0] > 0 else math.nan)
    return abs(shifts[0] - shifts[1]) >= 2 * EPS32


def _norms_of_steps(table: Table, which: Array) -> dict[int, tuple[float, int]]:
    """Return step -> the norm of all records together that are marked in it, and their number.

    which: for each row, whether it is marked. Steps whose norm is not finite are left out.
    """
    rows = np.flatnonzero(which)
    squares = np.square(table.figures["l2"][rows])
    steps, at, counts = np.unique(table.step[rows], return_inverse=True, return_counts=True)
    norms = np.sqrt(np.bincount(at.reshape(-1), squares, len(steps)))
    every = zip(steps.tolist(), norms.tolist(), counts.tolist(), strict=True)
    return {step: (norm, count) for step, norm, count in every if math.isfinite(norm)}


def _taken_and_made(table: Table, step: int) -> Iterator[tuple[int, Array]]:
    """Yield each gradient that an optimizer takes in a step, with what backward made for it.

    The gradient is given by its row; what backward made, by the rows of the gradients of single
    passes that were recorded before it, in order. Small gradients come first. Gradients that are
    zero, and gradients of which no pass was recorded, are left out.
    """
    taken = np.flatnonzero(is_taken(table) & (table.step == step))
    for row in taken[np.argsort(table.figures["numel"][taken], kind="stable")].tolist():
        own = table.tensors[table.tensor[row]]
        which = table.of_tensor(own.name, "pass_grad", own.rank) & (table.step == step)
        # A backward after the optimizer's step, as of an actor through its critic, is not in it.
        which &= (table.attempt == table.attempt[row]) & (table.order < table.order[row])
        rows = np.flatnonzero(which)
        if len(rows) and table.figures["l2"][row]:
            yield row, rows[np.argsort(table.order[rows], kind="stable")]


def _is_sum_of(table: Table, row: int, rows: Array) -> bool:
    """Whether record `row` is the sum of the records `rows` but for rounding; False if unknown."""
    if len(rows) == 1:
        return bool((table.digest[rows[0]] == table.digest[row]).all())
    floats = _read_floats(table, [row, *rows.tolist()])
    if floats is None:
        return False
    taken, *parts = floats
    if any(part.shape != taken.shape for part in parts):
        return False
    terms = float(sum(np.linalg.norm(part) for part in parts))
    return bool(np.linalg.norm(taken - sum(parts)) <= ROUNDINGS * EPS32 * terms)


def _read_floats(table: Table, rows: Sequence[int]) -> list[Array] | None:
    """Return the values of some records in float64; None where one cannot be used.

    None if values are not stored or cannot be read, if a dtype is not in FLOATS, or if the first of
    `rows` has more than MOST_ELEMENTS elements.
    """
    stored = table.kept[rows].all() and table.figures["numel"][rows[0]] <= MOST_ELEMENTS
    if not stored or any(table.dtypes[table.dtype[row]] not in FLOATS for row in rows):
        return None
    try:
        return [_values(table, row) for row in rows]
    except StoreError:
        return None


def _values(table: Table, row: int) -> Array:
    blocks = [np.reshape(block, -1) for block in table.read(row, 1 << 20)]
    raw = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    values: Array = dtypes.decode(raw, table.dtypes[table.dtype[row]]).astype(np.float64)
    return values
