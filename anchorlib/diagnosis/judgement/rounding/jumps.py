"""Where an error leaps: the place of a fault that was hidden below rounding at first.

A fault may first show as a difference below rounding: a correction, a normalisation or terms that
cancel hide the fault, and a few records later the difference is large. Within the first step that
differs, a leap is the first record whose relative error is a thousand times the largest error
before it, even though its inputs differ already. On 151 pairs of trainings whose difference was
known, a leap stood at the cause of 5 of 6 faults that were hidden like this, and 75 other pairs had
no leap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import UNMATCHED, Frontier, Overflows, Role
from anchorlib.diagnosis.judgement.rounding.bounds import rounding_bound
from anchorlib.diagnosis.judgement.rounding.shaken import steady_error
from anchorlib.diagnosis.sizes import Measures, coarsest_formats

__all__ = ["Jump", "jump"]

Array = np.ndarray[Any, Any]
TIMES = 1000.0
"""How many times as large as the largest error before it a leap has to be."""
LEAST = 2.0**-23
"""The least error that counts as the largest error before: one eps of float32."""
MULTIPLE = 2.0
"""How many times as large as these errors that of a multiple may be."""
SHARE = 1e-2
"""The share of the largest gradient of its kind and step against which a smaller one is judged. The
gradient of attention's keys is zero by theory where all values are equal, as in the first layer of
a decoder that begins with zeros: rounding alone was 3e-9 of the largest gradient there."""
LOW = 4.0
"""By how many eps of a format coarser than float32 a record may be off that is made of roundings in
it, where the record itself states no operations, as under no_grad."""
ELEMENTS = 64
"""The fewest elements of a tensor that leaps: smaller tensors may differ by 100 % by rounding."""


class Jump(NamedTuple):
    """A row that is an origin although its inputs differ already.

    row: the row in A's table.
    times: the row's error over the largest error before it in its step. The error of a gradient
    that is far smaller than other gradients is taken relative to these. 0 where something else than
    its error makes the row an origin.
    """

    row: int
    times: float


def jump(frontier: Frontier, measures: Measures, overflows: Overflows) -> Jump | None:
    """Return the first leap in the first step that differs, in A's order of execution, or None.

    None where the step has no leap. Four kinds of large errors are no leaps. The first is the error
    of a tensor that consists of rounding alone, as the gradient of a bias before a norm. The second
    is any error behind a record of integers, since rounding may turn a decision. The third is the
    error of what an optimizer reads or makes after the backward of a step that one run skipped
    because of a larger loss scale: clipping divides gradients by a norm that is infinite. The
    fourth is an error of up to LOW eps of a coarse format in which both runs computed before.
    overflows: knows the rows after such a skipped step.
    """
    a = frontier.alignment.a
    rows = frontier.alignment.a_row[measures.pair]
    at = np.flatnonzero(a.step[rows] == a.step[rows].min()) if len(rows) else rows
    at = at[np.argsort(a.order[rows[at]], kind="stable")]
    # An update is a small difference of two large numbers: its relative error says nothing.
    updates = a.of_kind("delta")
    whole = [dtypes.dtype(name).family in ("int", "bool") for name in a.dtypes]
    decided = np.array(whole or [False], bool)[a.dtype[rows[at]]]
    at = at[: int(np.argmax(decided))] if decided.any() else at
    at = at[~updates[rows[at]] & ~np.isnan(measures["error_eps"][at])]
    at = at[~((frontier.role[rows[at]] == Role.OPTIMIZER) & overflows.of(rows[at]))]
    errors = dict(
        zip(rows[at].tolist(), (measures["error_eps"] * measures["eps"])[at].tolist(), strict=True)
    )
    largest, of_norm = 0.0, _error_of_norm(frontier, measures, at)
    beside, low = _errors_beside(frontier, measures, at), _roundings(frontier, measures, at)
    for index, (place, (row, error)) in enumerate(zip(at.tolist(), errors.items(), strict=True)):
        far = beside[index] > TIMES * max(largest, LEAST) and error > low[index]
        if far and (
            _is_handed_on(frontier, row, errors, of_norm) or _is_rounding(frontier, measures, place)
        ):
            continue
        if far and _is_shaken(frontier, measures, place, TIMES * max(largest, LEAST)):
            continue
        # Rounding in low precision, which is skipped above, is no error before what follows. But a
        # gradient that is no multiple of the pass it is taken from leaps without an error before.
        if far and (largest > 0 or _pass_of(frontier, row) is not None):
            if measures["numel"][place] >= ELEMENTS:
                return Jump(row, float(beside[index]) / max(largest, LEAST))
            continue  # a fault in so few elements is seen at a larger tensor that follows from them
        largest = max(largest, float(beside[index]))
    return None


def _errors_beside(frontier: Frontier, measures: Measures, at: Array) -> Array:
    """Return the relative error of each record; small gradients are judged beside larger ones.

    The error of a gradient whose norm is less than SHARE of the largest of its group is relative to
    SHARE of that largest norm. There are three groups: gradients of parameters of single passes,
    gradients that optimizers take, and gradients of all other tensors but single numbers, such as a
    loss, whose gradient is 1.
    at: the indices, into `measures`, of the pairs of the first step that differs.
    """
    alignment = frontier.alignment
    pairs = measures.pair[at]
    rows = alignment.a_row[pairs]
    errors: Array = (measures["error_eps"] * measures["eps"])[at]
    norms, norms_b = (
        table.figures["l2"][own]
        for table, own in ((alignment.a, rows), (alignment.b, alignment.b_row[pairs]))
    )
    if not len(rows):
        return errors
    a, taken = alignment.a, frontier.role == Role.OPTIMIZER
    gradients = a.of_kind("grad") & (a.step == a.step[rows[0]])
    for own in (
        a.of_kind("pass_grad") & (a.step == a.step[rows[0]]),
        gradients & taken,
        gradients & ~taken & (a.figures["numel"] > 1),
    ):
        which = np.flatnonzero(own[rows])
        sizes = a.figures["l2"][own]
        least = SHARE * float(sizes[np.isfinite(sizes)].max(initial=0.0))
        which = which[norms[which] < least]
        # Where A's gradient is zero, its relative error is infinite: B's gradient is the error.
        zero = norms[which] == 0
        apart = np.where(zero, norms_b[which], np.where(zero, 0, errors[which]) * norms[which])
        errors[which] = apart / least
    return errors


def _roundings(frontier: Frontier, measures: Measures, at: Array) -> Array:
    """Return the largest relative error that coarse formats explain in each record; else 0.

    It is LOW eps of the coarsest format of the record and of differing records before it. 0 where
    none of these is coarser than float32.
    at: the indices, into `measures`, of the pairs of the first step that differs.
    """
    eps = coarsest_formats(frontier.alignment, measures, at)
    roundings: Array = np.where(eps > LEAST, LOW * eps, 0.0)
    return roundings


def _error_of_norm(frontier: Frontier, measures: Measures, at: Array) -> float:
    """Return an upper bound of how much the joint norm of a step's gradients differs, relatively.

    Clipping divides all gradients by that norm, so that rounding in one gradient, as of a product
    in low precision, is handed on to all of them. Only gradients of single passes count, which
    clipping has not changed. 0.0 where none of them differs.
    at: the indices, into `measures`, of the pairs of the first step that differs.
    """
    a = frontier.alignment.a
    passes = a.of_kind("pass_grad")
    rows = frontier.alignment.a_row[measures.pair[at]]
    own = at[passes[rows]]
    if not len(own):
        return 0.0
    every = passes & (a.step == a.step[rows[0]])
    with np.errstate(all="ignore"):
        errors = (measures["error_eps"] * measures["eps"] * measures["norm"])[own]
        error = float(np.linalg.norm(errors) / np.linalg.norm(a.figures["l2"][every]))
    return error if np.isfinite(error) else 0.0


def _is_handed_on(
    frontier: Frontier, row: int, errors: Mapping[int, float], of_norm: float
) -> bool:
    """Return whether a row's error comes from a parent, so that no leap begins here.

    It does where the error is at most TIMES the largest error of a parent, since an operation may
    enlarge an error. What an optimizer reads or makes may also have the error of the norm to which
    gradients are clipped. Three kinds of rows are treated differently.

    A value of which one run alone recorded a parent may have any earlier value as a parent. An
    optimizer's state may hold squares: as (1 + e)² = 1 + e·(2 + e), an error e of a parent becomes
    e·(2 + e). That matters where e is large, as in a gradient that is zero by theory. A gradient
    that an optimizer reads and that comes from a single pass is a multiple of that pass's gradient.
    Its error may be at most MULTIPLE times the sum of two errors: that of the pass's gradient, and
    that of the norm to which gradients are clipped.
    errors: row of A -> relative error of its pair. of_norm: see `_error_of_norm`.
    """
    a = frontier.alignment.a
    # A parent that was recorded later handed nothing on: lineage links all kinds of a parameter.
    # And no gradient depends on the number that the loss is.
    kind = a.tensors[a.tensor[row]].kind
    parents = [
        parent
        for parent in frontier.parents(row, saved=True)
        if a.order[parent] < a.order[row] and not (kind != "value" and _is_number(frontier, parent))
    ]
    if frontier.parent_only_in_a[row] and kind == "value":
        # What a parent in one run alone was made of may be any value before.
        parents = [
            one
            for one in errors
            if a.order[one] < a.order[row] and a.tensors[a.tensor[one]].kind == "value"
        ]
    largest = max((errors.get(parent, 0.0) for parent in parents), default=0.0)
    if (made := _pass_of(frontier, row)) is not None:
        return errors[row] <= MULTIPLE * (errors.get(made, 0.0) + of_norm)
    if kind.startswith("opt."):
        largest *= 2 + largest
    return errors[row] <= TIMES * largest or (
        frontier.role[row] == Role.OPTIMIZER and errors[row] <= of_norm
    )


def _pass_of(frontier: Frontier, row: int) -> int | None:
    """Return the row of the only `pass_grad` from which a row's `grad` was made; or None.

    None where several passes or none reached the parameter, where that `pass_grad` has no partner
    in B, and for rows that are no gradient that an optimizer reads.
    """
    a = frontier.alignment.a
    if a.tensors[a.tensor[row]].kind != "grad" or frontier.role[row] != Role.OPTIMIZER:
        return None
    made = [
        parent
        for parent in frontier.parents(row)
        if a.tensors[a.tensor[parent]].kind == "pass_grad" and a.order[parent] < a.order[row]
    ]
    known = len(made) == 1 and frontier.status[made[0]] != UNMATCHED
    return made[0] if known else None


def _is_number(frontier: Frontier, row: int) -> bool:
    a = frontier.alignment.a
    return bool(a.figures["numel"][row] == 1) and a.tensors[a.tensor[row]].kind == "value"


def _is_rounding(frontier: Frontier, measures: Measures, place: int) -> bool:
    """Return whether rounding in the dtypes of a record and its parents explains the error.

    Where computation goes on in bfloat16 after a float32 record, one rounding to bfloat16 is a
    thousand times as large as the errors before it. An error that is judged against another size
    than the record's own (`RoundingBound.note`) counts as rounding up to TIMES eps.
    place: the pair's index in `measures`.
    """
    row_a, row_b = _rows(frontier, measures, place)
    error = rounding_bound(frontier, row_a, row_b, measures.at(place))
    return error.rounding or (error.note != "" and error.error <= TIMES)


def _is_shaken(frontier: Frontier, measures: Measures, place: int, limit: float) -> bool:
    """Return whether an updated parameter differs only in elements whose gradient is rounding.

    place: the pair's index in `measures`. limit: the relative error up to which the other elements
    count as equal. False for records of any kind but `updated`.
    """
    row_a, row_b = _rows(frontier, measures, place)
    kind = frontier.alignment.a.tensors[frontier.alignment.a.tensor[row_a]].kind
    return kind == "updated" and steady_error(frontier, row_a, row_b) <= limit


def _rows(frontier: Frontier, measures: Measures, place: int) -> tuple[int, int]:
    """Return the row in A and the row in B of the pair at index `place` of `measures`."""
    pair = int(measures.pair[place])
    return int(frontier.alignment.a_row[pair]), int(frontier.alignment.b_row[pair])
