"""How B moved a tensor that was equal in both runs, compared with how A moved the tensor.

The move of a parameter, of its copy or of a running average since the last record shows more than
its value. With another step size, B's move is a multiple of A's move. With a step that is scaled by
the value itself, B's move is A's move times a power of the value. And where a parameter was moved
within a step and not put back before the optimizer's step, the result is off by that very move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import DIFFERS, EQUAL, Frontier, Role
from anchorlib.diagnosis.judgement.changes.directions import along_gradient, towards_original
from anchorlib.diagnosis.judgement.changes.optimizer_steps import did_not_step
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.errors import StoreError

__all__ = ["moved"]

Array = np.ndarray[Any, Any]
POWERS = {-2: "inverse square", -1: "inverse", 1: "size", 2: "square"}
NEAR = 1e-2  # share of a move, a difference of two rounded tensors, by which an equation may be off
CLEAR = 1e-2  # relative difference from which two moves differ
FEW = 8  # elements: in smaller tensors, many relations hold by chance
MOST_ELEMENTS = 1 << 22
EPS = 2.0**-23  # of float32: what is moved is held in no coarser type
CERTAIN = 8.0  # how many times the rounding of its tensor a move has to be


def moved(frontier: Frontier, row: int) -> list[str]:
    """Return clauses on how A and B moved a row's tensor differently; [] without stored values.

    row: a row of A. For a `value`, its move since the last record that is equal in both runs is
    compared; for `updated` and `delta`, a move within the step that was not put back. Other kinds,
    and tensors with few or very many elements, have no clause.
    """
    alignment = frontier.alignment
    a, tensor = alignment.a, alignment.a.tensors[alignment.a.tensor[row]]
    if not FEW <= a.figures["numel"][row] <= MOST_ELEMENTS:
        return []
    try:
        if tensor.kind == "value":
            return list(_since(frontier, row))
        return list(_left_there(frontier, row)) if tensor.kind in ("updated", "delta") else []
    except StoreError:
        return []


def _since(frontier: Frontier, row: int) -> Iterator[str]:
    """Yield clauses on how the runs moved a value since its last record that is equal in both.

    row: a value of A.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    before = _before(frontier, row)
    if before is None:
        return
    start = values(a, before)
    value_a, value_b = values(a, row), values(alignment.b, _partner(alignment, row))
    if (
        start is None
        or value_a is None
        or value_b is None
        or not len(start) == len(value_a) == len(value_b)
    ):
        return
    made = (value_a, value_b)
    if along := along_gradient(frontier, before, start, made):
        yield along
    elif np.linalg.norm(value_a - start) < np.linalg.norm(start):
        # A value that is made anew in each pass was not moved.
        yield from _compared(frontier, row, before, start, made)


def _compared(
    frontier: Frontier, row: int, before: int, start: Array, made: tuple[Array, Array]
) -> Iterator[str]:
    """Yield clauses on how the runs moved a value, as `_since` does.

    before: A's row of the record that is equal in both. start: its values. made: the values of the
    row in A and in B.
    """
    a = frontier.alignment.a
    moves = made[0] - start, made[1] - start
    slack = EPS * float(np.linalg.norm(start))
    since = f"since step {int(a.step[before])}, pass {int(a.pass_index[before])}"
    factor = _factor(*moves, slack)
    still = [bool((one == start).all()) for one in made]
    if still[0] != still[1]:
        yield f"{'BA'[still[1]]} alone moves it {since}"
        yield from did_not_step(frontier, row, before, still.index(True))
    elif factor is not None:
        if abs(factor - 1) > CLEAR:
            yield f"B's move of it {since} is {factor:.3g} times A's"
            yield from filter(None, [towards_original(frontier, row, before, start, moves)])
    elif power := _power(*moves, np.abs(start), slack):
        yield f"B's move of it {since} is A's times the {power} of what it was"


def _before(frontier: Frontier, row: int) -> int | None:
    """Return A's row of the last record of a value before `row` that is equal in both, or None.

    Each phase records a parameter, so that earlier records may have the bits of `row` in both runs:
    these are passed over. None where another earlier record differs first.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    parameter = frontier.role[row] == Role.PARAMETER  # one in all phases
    before = series(a, row, "value", every_phase=bool(parameter))
    partner = _partner(alignment, row)
    for earlier in before[a.order[before] < a.order[row]][::-1].tolist():
        if frontier.status[earlier] == EQUAL:
            return int(earlier)
        if frontier.status[earlier] != DIFFERS:
            return None
        same = (a.digest[earlier] == a.digest[row]).all()
        digest = alignment.b.digest
        if not (same and (digest[_partner(alignment, earlier)] == digest[partner]).all()):
            return None
    return None


def _left_there(frontier: Frontier, row: int) -> Iterator[str]:
    """Yield a clause where a parameter moved within a step was not put back before the update.

    row: A's `updated` or `delta` row of the parameter.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    within = series(a, row, "value")
    within = within[(a.step[within] == a.step[row]) & (a.order[within] < a.order[row])]
    made = series(a, row, "updated")
    made = made[(a.step[made] == a.step[row]) & (a.pass_index[made] == a.pass_index[row])]
    if len(within) < 2 or not len(made) or (frontier.status[within] != EQUAL).any():
        return
    start, last = (values(a, int(at)) for at in (within[0], within[-1]))
    update_a, update_b = (
        values(a, int(made[-1])),
        values(alignment.b, _partner(alignment, int(made[-1]))),
    )
    if (
        start is None
        or last is None
        or update_a is None
        or update_b is None
        or len(update_b) != len(start)
    ):
        return
    factor = _factor(last - start, update_b - update_a, EPS * float(np.linalg.norm(start)))
    if factor is not None and abs(abs(factor) - 1) <= CLEAR:
        run = "B" if factor > 0 else "A"
        yield (
            f"{run} is off by the move of pass {int(a.pass_index[within[-1]])}: the parameter was "
            "not put back before the optimizer's step"
        )


def _factor(move_a: Array, move_b: Array, slack: float) -> float | None:
    """Return the factor by which `move_b` is a multiple of `move_a`; None without such a factor.

    A move is the difference of two records of one tensor. None, too, where the moves are not
    clearly larger than `slack`.
    slack: the norm of the rounding errors of these records.
    """
    size = float(move_a @ move_a)
    factor = float(move_a @ move_b) / size if size else 0.0
    least = min(float(np.linalg.norm(move_b)), abs(factor) * float(np.sqrt(size)))
    if least < CERTAIN * slack:
        return None
    near = float(np.linalg.norm(move_b - factor * move_a)) <= NEAR * least + slack
    return factor if near else None


def _power(move_a: Array, move_b: Array, size: Array, slack: float) -> str:
    """Return the name of the power of `size` by which `move_a` becomes `move_b`; "" for none.

    size: the magnitude of the tensor before the move. slack: the norm of the rounding of the moves.
    """
    with np.errstate(all="ignore"):
        for power, name in POWERS.items():
            scaled = move_a * size**power
            if np.isfinite(scaled).all() and _factor(scaled, move_b, slack) is not None:
                return name
    return ""


def _partner(alignment: Alignment, row: int) -> int:
    return int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
