"""Gradients that one run's program alters after backward, where the other's backward makes them so.

    loss.backward()                             weight.register_hook(lambda g: g * mask)
    weight.grad.mul_(mask)                      loss.backward()

Both optimizers read the same gradient. What backward left of it in the step's only pass
(`pass_grad`) differs, since one run takes it as it was made, or a multiple of it, as clipping
makes, and the other alters it first: it masks it, or adds what the other's loss holds. Where both
take a multiple, a number in the loss is not taken off, and is no such difference. The gradients
that optimizers read and all updates are judged by themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.rounding.bounds import TOLERANCE
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["altered_by_hand"]

Array = np.ndarray[Any, Any]
PASS, TAKEN = "pass_grad", "grad"
EPS32 = 2.0**-23
BEYOND = 32.0
"""By how many eps gradients differ at least that are none by rounding, or multiples."""
NEARER = 0.1
"""Of how much of their gradients' difference after backward the runs may still differ when the
optimizers read them, once rounding has moved them apart."""
MOST_ELEMENTS = 1 << 24  # of gradients that are read


def altered_by_hand(alignment: Alignment, measures: Measures) -> Array:
    """Return for each measured pair whether it is what one run's program made equal after backward.

    That is a `pass_grad` in a step with one pass, the first in which that tensor's differ by more
    than rounding: the gradients that optimizers read are equal there, or a few roundings apart, and
    one run alone reads a multiple of what its backward made. So are the tensor's in later steps
    where the gradients that are read differ by less than NEARER of what these do.
    """
    a, rows = alignment.a, alignment.a_row[measures.pair]
    excused = a.of_kind(PASS)[rows] & (measures["error_eps"] > BEYOND)
    if not excused.any():
        return excused
    partner = np.full(len(a) + 1, -1)  # the last one is that of no row, -1
    partner[alignment.a_row] = np.arange(len(alignment))
    pair_of_taken = partner[_taken(a)[rows]]
    several = _in_several_passes(alignment, measures, excused, partner)
    excused &= pair_of_taken >= 0
    own, taken = measures.pair[excused], pair_of_taken[excused]
    errors = _errors(measures, taken)
    near = errors <= TOLERANCE
    near &= _taken(alignment.b)[alignment.b_row[own]] == alignment.b_row[taken]
    tensors, steps = a.tensor[alignment.a_row[own]], a.step[alignment.a_row[own]]
    first: dict[int, int] = {}
    for tensor, step in zip(tensors.tolist(), steps.tolist(), strict=True):
        first[tensor] = min(first.get(tensor, step), step)
    begins = np.array([first[tensor] for tensor in tensors.tolist()], np.int64) == steps
    at = np.flatnonzero(near & begins)
    if a.figures["numel"][alignment.a_row[own[at]]].sum() > MOST_ELEMENTS:
        return np.zeros(len(rows), bool)
    altered = [
        tensor
        for tensor, pair, beside in zip(
            tensors[at].tolist(), own[at].tolist(), taken[at].tolist(), strict=True
        )
        if _is_altered_in_one(alignment, pair, beside)
    ]
    excused[excused] = np.isin(tensors, altered) & (
        near | (errors < NEARER * measures["error_eps"][excused])
    )
    return excused | (several & np.isin(a.tensor[rows], altered))


def _in_several_passes(
    alignment: Alignment, measures: Measures, asked: Array, partner: Array
) -> Array:
    """Return which pairs of `asked` are of a step with several passes whose gradients end equal.

    Their passes are not told apart: a program may estimate something by backward passes of its own.
    The gradient that the optimizer reads differs by less than NEARER of what the pair does.
    asked: for each measured pair, whether it is asked for. partner: row of A -> its pair, or -1.
    """
    a, rows = alignment.a, alignment.a_row[measures.pair]
    pairs = partner[_taken(a, several=True)[rows]]
    pairs = np.where(_taken(a)[rows] < 0, pairs, -1)
    found = asked & (pairs >= 0)
    errors = _errors(measures, pairs[found])
    found[found] = (errors <= TOLERANCE) | (errors < NEARER * measures["error_eps"][found])
    return found


def _is_altered_in_one(alignment: Alignment, pair: int, taken: int) -> bool:
    """Return whether one run alone takes something else than a multiple of what backward made.

    pair: the index of a pair of `pass_grad`. taken: of the gradients that the optimizers read.
    """
    sides = ((alignment.a, alignment.a_row), (alignment.b, alignment.b_row))
    try:
        read = [
            (values(table, int(of[pair])), values(table, int(of[taken]))) for table, of in sides
        ]
    except StoreError:
        return False
    multiples = []
    for made, own in read:
        if made is None or own is None or made.size != own.size:
            return False
        square = float(made @ made)
        factor = float(made @ own) / square if square else 0.0
        rest = float(np.linalg.norm(own - factor * made))
        multiples.append(rest <= BEYOND * EPS32 * float(np.linalg.norm(own)))
    return multiples[0] != multiples[1]


def _taken(table: Table, *, several: bool = False) -> Array:
    """Return for each `pass_grad` the row of the `grad` that its step's optimizer read, else -1.

    It is -1 also where the step has several such gradients of the parameter, or several passes.
    several: whether it is the row in steps with several passes, too.
    """
    found = np.full(len(table), -1)
    numbers: dict[tuple[str, int], int] = {}
    of_kind = {PASS: np.full(len(table.tensors), -1), TAKEN: np.full(len(table.tensors), -1)}
    for at, tensor in enumerate(table.tensors):
        if tensor.kind in of_kind:
            key = (tensor.name, tensor.rank)
            of_kind[tensor.kind][at] = numbers.setdefault(key, len(numbers))
    if not numbers:
        return found
    steps = int(table.step.max(initial=0)) + 1
    keys, rows = {}, {}
    for kind, codes in of_kind.items():
        number = codes[table.tensor]
        rows[kind] = np.flatnonzero(number >= 0)
        keys[kind] = number[rows[kind]] * steps + table.step[rows[kind]]
    once = {}
    for kind, own in keys.items():
        distinct, places, count = np.unique(own, return_index=True, return_counts=True)
        once[kind] = distinct[count == 1], rows[kind][places[count == 1]]
    passes, of_passes = (keys[PASS], rows[PASS]) if several else once[PASS]
    distinct, of_taken = once[TAKEN]
    if not len(distinct):
        return found
    place = np.minimum(np.searchsorted(distinct, passes), len(distinct) - 1)
    known = distinct[place] == passes
    found[of_passes[known]] = of_taken[place[known]]
    return found


def _errors(measures: Measures, pairs: Array) -> Array:
    """Return the errors of some pairs in eps; 0 for pairs that were not measured, which are equal.

    pairs: indices of the alignment's pairs.
    """
    place = np.minimum(np.searchsorted(measures.pair, pairs), len(measures.pair) - 1)
    measured = measures.pair[place] == pairs
    errors: Array = np.where(measured, measures["error_eps"][place], 0.0)
    return errors
