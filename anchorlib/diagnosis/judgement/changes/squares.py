"""The target of a squared loss, computed from the loss, its input and the gradient of that input.

    L = c·Σ(x − t)²,  g = 2c·(x − t)      so      t = x − 2·L·g / Σg²,  and  c = Σg² / (4·L)

Autograd does not follow targets, and few programs record them: returns of a policy, a teacher's
results, noise. Where both runs use one formula, their c is equal, whatever their targets are. Where
their c differs, the runs have different losses, or further terms, and nothing is said.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.changes.targets import gradient_of
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.pairing import Table
from anchorlib.errors import StoreError

__all__ = ["squared_targets"]

Array = np.ndarray[Any, Any]
SQUARE = re.compile(r"^(Pow|MseLoss)Backward")
LINEAR = re.compile(
    r"^(Pow|MseLoss|Mul|Div|Mean|Sum|Sub|RSub|Neg|T|\w*View|Reshape\w*|Slice|Select|Transpose|Permute"
    r"|Expand|Clone|Unsqueeze|Squeeze|Unbind|Alias|Index|Gather)Backward"
)
"""Operations of a squared loss of one input: the square, and others that are linear."""
EXACT = 1e-4  # relative difference up to which c is equal in both runs
CLEAR = 1e-3  # share of the larger target from which an element's targets differ
FEW = 2  # elements: a single element fits any formula
MOST_ELEMENTS = 1 << 22


def squared_targets(frontier: Frontier, row: int) -> list[str]:
    """Return a clause on how the targets of a squared loss differ; [] if equal or unknown.

    row: a row of A, the loss: a value of one number.
    """
    alignment = frontier.alignment
    a, tensor = alignment.a, alignment.a.tensors[alignment.a.tensor[row]]
    ancestry = frontier.ancestry(row)
    links = [link for link in ancestry.parents if not link.saved and link.kind == "value"]
    squares = any(map(SQUARE.match, ancestry.ops)) and all(map(LINEAR.match, ancestry.ops))
    scalar = tensor.kind == "value" and a.figures["numel"][row] == 1
    if not (scalar and squares and len(links) == 1):
        return []
    gradient = gradient_of(frontier, row, links[0])
    if gradient is None or not FEW <= a.figures["numel"][gradient] <= MOST_ELEMENTS:
        return []
    given = series(a, gradient, "value", links[0].name)
    for place in (a.step, a.pass_index, a.call):
        given = given[place[given] == place[gradient]]
    rows = [row, *given[:1].tolist(), gradient]
    if len(rows) < 3 or not np.isin(rows, alignment.a_row).all():
        return []
    others = [int(alignment.b_row[np.searchsorted(alignment.a_row, at)]) for at in rows]
    try:
        target_a, target_b = _target(a, rows), _target(alignment.b, others)
    except StoreError:
        return []
    if target_a is None or target_b is None or abs(target_a[1] / target_b[1] - 1) > EXACT:
        return []
    return _different(target_a[0], target_b[0])


def _target(table: Table, rows: list[int]) -> tuple[Array, float] | None:
    """Return the target t of a squared loss and the factor c; None where they are not known.

    The target is nan where an element has no gradient. rows: the rows of the loss, of its input,
    and of the input's gradient, in `table`.
    """
    loss, x, g = (values(table, one) for one in rows)
    if loss is None or x is None or g is None or len(x) != len(g):
        return None
    size, least = float(g @ g), float(loss[0])
    if not (size > 0 and least > 0):
        return None
    target = x - 2 * least * g / size
    target[g == 0] = np.nan
    return target, size / (4 * least)


def _different(target_a: Array, target_b: Array) -> list[str]:
    """Return a clause, in a list, on how two targets differ; [] where they are equal."""
    known = ~(np.isnan(target_a) | np.isnan(target_b))
    target_a, target_b = target_a[known], target_b[known]
    if not len(target_a):
        return []
    size = max(float(np.abs(target_a).max()), float(np.abs(target_b).max()))
    other = int((np.abs(target_b - target_a) > CLEAR * size).sum())
    if not other:
        return []
    means = f"{figure(float(target_a.mean()))} | {figure(float(target_b.mean()))} on average"
    return [f"the loss's target differs in {other:,} of {len(target_a):,} elements, {means}"]
