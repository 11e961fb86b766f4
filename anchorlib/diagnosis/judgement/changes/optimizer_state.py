"""What an optimizer held when it made an update, as far as its state after the update shows it.

    opt.step 7 | 1                              A's has made 7 steps, B's has made 1
    B's exp_avg and exp_avg_sq begin at zero    that state was lost, or not restored on resuming
    of head.* alone                             the parameters whose state differs, if not all do

A moving average that began at zero is a multiple of the gradient, or of its square, after one step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.causes import DIFFERS, Frontier
from anchorlib.diagnosis.judgement.changes.prefixes import folded
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["held_otherwise"]

Array = np.ndarray[Any, Any]
NEAR = 1e-5  # share of a state's norm by which it may be off a multiple of the gradient
FEW = 8  # elements: smaller tensors are multiples of others by chance
MOST_ELEMENTS = 1 << 22
SHOWN = 3
STATE = "opt."
STEP = "opt.step"


class _Held(NamedTuple):
    """The rows of one parameter's optimizer state after a step, in A and in B: kind -> row."""

    a: dict[str, int]
    b: dict[str, int]


def held_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Return clauses on optimizer state that differed when an update was made; [] for none.

    row: an `updated`, `delta` or `opt.*` row; other rows give [].
    """
    a = frontier.alignment.a
    name, kind, _, rank = a.tensors[a.tensor[row]]
    if kind not in ("updated", "delta") and not kind.startswith(STATE):
        return []
    held = _held(frontier, row, name)
    try:
        clauses = [*_steps(frontier.alignment, held), *_from_zero(frontier.alignment, row, held)]
    except StoreError:
        return []
    if clauses:
        clauses += _alone(frontier, row, rank)
    return clauses


def _held(frontier: Frontier, row: int, name: str) -> _Held:
    """Return the rows of a parameter's optimizer state that differ after a row's update.

    name: the parameter's name in A. Each kind of state, which begins with `opt.`, has its row if
    the state differs. row: a row of A.
    """
    alignment = frontier.alignment
    a = alignment.a
    kinds = {tensor.kind for tensor in a.tensors if tensor.name == name}
    held = _Held({}, {})
    for kind in sorted(one for one in kinds if one.startswith(STATE)):
        rows = series(a, row, kind)
        rows = rows[(a.step[rows] == a.step[row]) & (frontier.status[rows] == DIFFERS)]
        rows = rows[(a.pass_index[rows] == a.pass_index[row]) & (a.call[rows] == a.call[row])]
        if len(rows):
            held.a[kind] = int(rows[0])
            held.b[kind] = _partner(alignment, int(rows[0]))
    return held


def _steps(alignment: Alignment, held: _Held) -> list[str]:
    """Return the clause "opt.step A's | B's" where the numbers of steps differ; else []."""
    if STEP not in held.a:
        return []
    counts = [values(alignment.a, held.a[STEP]), values(alignment.b, held.b[STEP])]
    if any(count is None or len(count) != 1 for count in counts):
        return []
    steps = [float(count[0]) for count in counts if count is not None]
    return [f"{STEP} {steps[0]:g} | {steps[1]:g}"] if steps[0] != steps[1] else []


def _from_zero(alignment: Alignment, row: int, held: _Held) -> list[str]:
    """Return a clause for each run on the state that began at zero in this run alone.

    row: A's row of the update. held: the state after it, where it differs.
    """
    row_b = _partner(alignment, row)
    began = [
        {kind for kind, at in own.items() if kind != STEP and _is_new(table, at, place)}
        for table, own, place in ((alignment.a, held.a, row), (alignment.b, held.b, row_b))
    ]
    clauses = []
    for run, new in enumerate((began[0] - began[1], began[1] - began[0])):
        kinds = [escape(kind.removeprefix(STATE)) for kind in sorted(new)]
        verb = "begins" if len(kinds) == 1 else "begin"
        if kinds:
            clauses.append(f"{'AB'[run]}'s {' and '.join(kinds[:SHOWN])} {verb} at zero")
    return clauses


def _is_new(table: Table, state: int, row: int) -> bool:
    """Return whether a state is a multiple of the gradient or of the gradient's square.

    Such a state began at zero before the step. With a decay of weights, the parameter is added to
    the gradient. False where the values of the state or of the gradient are not known.
    state: the row of the state after the step. row: the row of the update.
    """
    if not FEW <= table.figures["numel"][state] <= MOST_ELEMENTS:
        return False
    made, gradient = values(table, state), _before(table, row, "grad")
    if made is None or gradient is None or len(gradient) != len(made):
        return False
    bases = [gradient[:, None], np.square(gradient)[:, None]]
    weight = _before(table, row, "value")
    if weight is not None and len(weight) == len(made) and len(made) >= 4 * FEW:
        bases.append(np.stack([gradient, weight], axis=1))
    size = float(np.linalg.norm(made))
    return size > 0 and any(_rest(made, basis) <= NEAR * size for basis in bases)


def _rest(made: Array, basis: Array) -> float:
    """Return the distance of a tensor from the nearest linear combination of a basis's columns."""
    factors = np.linalg.lstsq(basis, made, rcond=None)[0]
    return float(np.linalg.norm(made - basis @ factors))


def _before(table: Table, row: int, kind: str) -> Array | None:
    """Return the values of a tensor's last record of one kind, before a row and in the row's step.

    None where there is no such record, or its values are not known.
    """
    rows = series(table, row, kind)
    rows = rows[(table.step[rows] == table.step[row]) & (table.order[rows] < table.order[row])]
    return values(table, int(rows[-1])) if len(rows) else None


def _alone(frontier: Frontier, row: int, rank: int) -> list[str]:
    """Return a clause that names the parameters whose state differs: "of head.* alone".

    [] where the states of all parameters differ in the row's step.
    row: a row of A, whose step counts. rank: the rank whose state counts.
    """
    a = frontier.alignment.a
    state = a.where(lambda tensor: tensor.kind.startswith(STATE) and tensor.rank == rank)
    rows = np.flatnonzero(state & (a.step == a.step[row]))
    every = {a.tensors[number].name for number in a.tensor[rows].tolist()}
    rows = rows[frontier.status[rows] == DIFFERS]
    others = {a.tensors[number].name for number in a.tensor[rows].tolist()}
    if others == every:
        return []
    named = folded(others, every)
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return [f"of {', '.join(map(escape, named[:SHOWN]))}{more} alone"]


def _partner(alignment: Alignment, row: int) -> int:
    return int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
