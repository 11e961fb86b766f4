"""Towards what the runs move a tensor, and how far: a model's average, or a gradient.

    average.lerp_(weight, 0.1)          average.lerp_(weight, 0.9)
    x = x + 10 * slope + noise          x = x - 10 * slope + noise

The share and the step are told, in A and in B.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier
from anchorlib.diagnosis.judgement.changes.calls import original_of
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.pairing import Table, parameters_of
from anchorlib.names import escape

__all__ = ["along_gradient", "towards_original"]

Array = np.ndarray[Any, Any]
NEAR = 1e-2  # share of a move by which it may be off the direction
CLEAR = 0.2  # share by which two factors may be off being opposite
MOST = 32  # parameters of one shape that are read
FEW = 8  # elements: in smaller tensors, directions fit by chance


def towards_original(
    frontier: Frontier, row: int, before: int, start: Array, moves: tuple[Array, Array]
) -> str:
    """Return a clause on the share of a model's parameter that its copy takes up in A and in B.

    Such a copy is a moving average. "" where the copy moves anywhere else in a run.
    row, before: A's rows of the copy's parameter, now and at its last record that is equal in both
    runs. start: its values then. moves: how A and B have moved it since.
    """
    a = frontier.alignment.a
    own = a.tensors[a.tensor[row]]
    for name in _originals(a, row)[:MOST]:
        rows = series(a, row, "value", name, every_phase=True)
        rows = rows[(a.order[rows] > a.order[before]) & (a.step[rows] <= a.step[row])]
        known = bool(len(rows)) and frontier.status[rows[-1]] == EQUAL and name != own.name
        goal = values(a, int(rows[-1])) if known else None
        if goal is None or len(goal) != len(start):
            continue
        shares = [_factor(move, goal - start) for move in moves]
        if shares[0] is not None and shares[1] is not None:
            shown = f"{shares[0]:.3g} | {shares[1]:.3g}"
            return f"as a moving average it takes up {escape(name)} with a share of {shown}"
    return ""


def _originals(a: Table, row: int) -> list[str]:
    """Return the names of the parameters of which a row may be a copy.

    This is the one that has the copy's name in the model itself; where no model was copied as a
    whole, those of the copy's shape.
    """
    own = a.tensors[a.tensor[row]]
    if original := original_of(a, own.rank, own.name):
        return [original]
    alike = np.unique(a.tensor[(a.shape == a.shape[row]) & (a.step == a.step[row])]).tolist()
    tensors = [a.tensors[number] for number in alike]
    learnt = parameters_of(a)
    return [
        one.name
        for one in tensors
        if (one.kind, one.rank) == ("value", own.rank) and one.name in learnt
    ]


def along_gradient(frontier: Frontier, before: int, start: Array, made: tuple[Array, Array]) -> str:
    """Return a clause on how far A and B move a value along its gradient, if only that differs.

    Elements at an extreme of the value do not count: the program may bound it there.
    before: A's row of the value before the move. start: its values. made: the values of A and of B
    after the move.
    """
    a = frontier.alignment.a
    rows = series(a, before, "grad")
    here = (a.step[rows] == a.step[before]) & (a.pass_index[rows] == a.pass_index[before])
    rows = rows[here & (a.call[rows] == a.call[before]) & (frontier.status[rows] == EQUAL)]
    slope = values(a, int(rows[0])) if len(rows) == 1 else None
    if slope is None or len(slope) != len(made[0]):
        return ""
    inside = np.ones(len(slope), bool)
    for value in made:
        inside &= (value > value.min()) & (value < value.max())
    slope = slope[inside]
    size = float(slope @ slope)
    if inside.sum() < FEW or not size:
        return ""
    more = _factor((made[1] - made[0])[inside], slope)
    if more is None:
        return ""
    place = f"gradient of step {int(a.step[before])}, pass {int(a.pass_index[before])}"
    own = float((made[0] - start)[inside] @ slope) / size  # the program may add noise besides
    if abs(2 * own + more) <= CLEAR * abs(more):
        return f"its {place} moves it by {-more / 2:.3g} | {more / 2:.3g} times: the other sign"
    return f"B adds {more:.3g} times its {place}"


def _factor(move: Array, along: Array) -> float | None:
    """Return the factor by which `move` is a multiple of `along`; None if it is none."""
    size = float(along @ along)
    factor = float(move @ along) / size if size and len(along) >= FEW else 0.0
    near = np.linalg.norm(move - factor * along) <= NEAR * np.linalg.norm(move)
    return factor if factor and near else None
