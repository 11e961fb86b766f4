"""How B moved a tensor that both runs held alike, compared with how A moved the tensor.

The move of a parameter, a copy of one or a running average since its last record says more than its
value. With another step size, B's move is a multiple of A's. With a step that is scaled by the
value itself, it is A's times a power of the value. And where a parameter was moved within a step
and not put back before the optimizer's step, the result is off by that very move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier, Role
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.errors import StoreError

__all__ = ["moved"]

Array = np.ndarray[Any, Any]
POWERS = {-2: "inverse square", -1: "inverse", 1: "size", 2: "square"}
NEAR = 1e-2  # share of a move, a difference of two rounded tensors, by which an equation may be off
CLEAR = 1e-2  # relative difference from which two moves are two
FEW = 8  # elements: of fewer, many relations hold by chance
MOST_ELEMENTS = 1 << 22
EPS = 2.0**-23  # of float32: what is moved is held in no coarser type
CERTAIN = 8.0  # how many times the rounding of its tensor a move has to be


def moved(frontier: Frontier, row: int) -> list[str]:
    """What the moves of a row's tensor tell, a clause each; [] without stored values."""
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
    """Compares the two moves of a value since its record before, which was equal in both runs."""
    alignment, a = frontier.alignment, frontier.alignment.a
    parameter = frontier.role[row] == Role.PARAMETER  # one in all phases
    before = series(a, row, "value", every_phase=bool(parameter))
    before = before[a.order[before] < a.order[row]]
    if not len(before) or frontier.status[before[-1]] != EQUAL:
        return
    start = values(a, int(before[-1]))
    one, two = values(a, row), values(alignment.b, _partner(alignment, row))
    if start is None or one is None or two is None or not len(start) == len(one) == len(two):
        return
    # A value that is made anew in each pass was not moved.
    if not np.linalg.norm(one - start) < np.linalg.norm(start):
        return
    slack = EPS * float(np.linalg.norm(start))
    since = f"since step {int(a.step[before[-1]])}, pass {int(a.pass_index[before[-1]])}"
    factor = _factor(one - start, two - start, slack)
    still = [bool((made == start).all()) for made in (one, two)]
    if still[0] != still[1]:
        yield f"{'BA'[still[1]]} alone moves it {since}"
        yield from _left_out(frontier, row, int(before[-1]), still.index(True))
    elif factor is not None:
        if abs(factor - 1) > CLEAR:
            yield f"B's move of it {since} is {factor:.3g} times A's"
    elif power := _power(one - start, two - start, np.abs(start), slack):
        yield f"B's move of it {since} is A's times the {power} of what it was"


def _left_out(frontier: Frontier, row: int, before: int, still: int) -> Iterator[str]:
    """Says that the optimizer did not step in a run, where the other run alone has its update.

    before: the tensor's row before this one. still: the run that left the tensor as it was.
    """
    alignment = frontier.alignment
    sides = [
        (alignment.a, before, row),
        (alignment.b, _partner(alignment, before), _partner(alignment, row)),
    ]
    counts = []
    for table, first, last in sides:
        made = series(table, last, "updated", every_phase=True)
        between = (table.order[made] > table.order[first]) & (table.order[made] < table.order[last])
        counts.append(int(between.sum()))
    if counts[1 - still] and not counts[still]:
        yield f"its optimizer did not step in {'AB'[still]}"


def _left_there(frontier: Frontier, row: int) -> Iterator[str]:
    """Says that a parameter moved within a step was not put back before the optimizer's step."""
    alignment, a = frontier.alignment, frontier.alignment.a
    within = series(a, row, "value")
    within = within[(a.step[within] == a.step[row]) & (a.order[within] < a.order[row])]
    made = series(a, row, "updated")
    made = made[(a.step[made] == a.step[row]) & (a.pass_index[made] == a.pass_index[row])]
    if len(within) < 2 or not len(made) or (frontier.status[within] != EQUAL).any():
        return
    start, last = (values(a, int(one)) for one in (within[0], within[-1]))
    one, two = values(a, int(made[-1])), values(alignment.b, _partner(alignment, int(made[-1])))
    if start is None or last is None or one is None or two is None or len(two) != len(start):
        return
    factor = _factor(last - start, two - one, EPS * float(np.linalg.norm(start)))
    if factor is not None and abs(abs(factor) - 1) <= CLEAR:
        run = "B" if factor > 0 else "A"
        yield (
            f"{run} is off by the move of pass {int(a.pass_index[within[-1]])}: the parameter was "
            "not put back before the optimizer's step"
        )


def _factor(one: Array, two: Array, slack: float) -> float | None:
    """The factor by which `two` is a multiple of `one`; None where it is none.

    slack: the norm of the rounding of the tensors whose differences `one` and `two` are.
    """
    size = float(one @ one)
    factor = float(one @ two) / size if size else 0.0
    least = min(float(np.linalg.norm(two)), abs(factor) * float(np.sqrt(size)))
    if least < CERTAIN * slack:
        return None
    near = float(np.linalg.norm(two - factor * one)) <= NEAR * least + slack
    return factor if near else None


def _power(one: Array, two: Array, size: Array, slack: float) -> str:
    """The name of the power of `size` that turns the first move into the second; "" without one."""
    with np.errstate(all="ignore"):
        for power, name in POWERS.items():
            scaled = one * size**power
            if np.isfinite(scaled).all() and _factor(scaled, two, slack) is not None:
                return name
    return ""


def _partner(alignment: Alignment, row: int) -> int:
    return int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
