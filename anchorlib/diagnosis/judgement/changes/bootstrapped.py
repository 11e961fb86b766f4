"""A loss's target in which a recorded value has another factor: another discount, another mask.

    B's target is A's plus 0.09 times an element of each row of copy.output, in 16 of 24 rows (a
    discount, or a mask?)

A target that a program computes from a model's values without gradients has no record. But in the
quadratic part of a squared, smooth or Huber loss, the gradient of the input x is a known multiple
of x − t. So the gradients of both runs show by how much the target t of each row differs. If there
is an equal value in the step, and one factor by which every difference is a multiple of an element
in that value's row, the program adds the value to its target with another factor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import EQUAL, Frontier
from anchorlib.diagnosis.judgement.changes.operations import Operation
from anchorlib.diagnosis.judgement.changes.targets import gradient_of
from anchorlib.diagnosis.judgement.series import values
from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["other_share"]

Array = np.ndarray[Any, Any]
LOSS = re.compile(r"^(SmoothL1|Huber|Mse)LossBackward")
LINEAR = re.compile(r"^(Mul|Div)Backward")
LOOKING = re.compile(r"^(Select|Gather|Index|Slice|T|\w*View|Squeeze|Unsqueeze|Expand)Backward")
"""Operations that choose elements of the loss's input."""
COUNT = re.compile(r"\btarget=\((\d+) of ")
NUMBER = r"\b{}=(?:tensor\()?(-?[\d.e+-]+)"
NEAR = 1e-4  # share of the largest difference of two targets by which a multiple may be off
FEW = 5  # rows: with fewer rows, some element of each is such a multiple by chance
MOST_ELEMENTS = 1 << 16
MOST_VALUES = 8
MOST_COLUMNS = 256


def other_share(frontier: Frontier, row: int, ops: Sequence[Operation]) -> list[str]:
    """Return a clause if B's target holds another multiple of a recorded value than A's; else [].

    ops: A's operations between the loss and its parents.
    row: A's row of the loss, which has to be a single number.
    """
    try:
        difference = _difference(frontier, row, ops)
        if difference is None:
            return []
        other = np.abs(difference) > NEAR * np.abs(difference).max()
        if other.sum() < FEW:
            return []
        for name, table in _tables(frontier, row, len(difference)):
            if factor := _factor(difference[other], table[other]):
                rows = f"{int(other.sum()):,} of {len(other):,} rows"
                return [
                    f"B's target is A's {'plus' if factor > 0 else 'minus'} {figure(abs(factor))} "
                    f"times an element of each row of {escape(name)}, in {rows} (a discount, or a "
                    "mask?)"
                ]
    except StoreError:
        return []
    return []


def _difference(frontier: Frontier, row: int, ops: Sequence[Operation]) -> Array | None:
    """Return B's target minus A's, one number for each row of the loss's input; None if unknown.

    The number is 0 for rows outside of the loss's quadratic part, where it is not known.
    row: the row of the loss in A. ops: A's operations between the loss and its parents.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    slope = _slope(ops)
    links = [
        link for link in frontier.ancestry(row).parents if not link.saved and link.kind == "value"
    ]
    if not slope or len(links) != 1 or a.figures["numel"][row] != 1:
        return None
    gradient = gradient_of(frontier, row, links[0])
    if gradient is None or a.figures["numel"][gradient] > MOST_ELEMENTS:
        return None
    partner = int(alignment.b_row[np.searchsorted(alignment.a_row, gradient)])
    gradient_a, gradient_b = values(a, gradient), values(alignment.b, partner)
    if gradient_a is None or gradient_b is None or len(gradient_a) != len(gradient_b):
        return None
    shape = a.shapes[a.shape[gradient]]
    count = shape[0] if shape else 0
    sides = [side.reshape(count, -1) for side in (gradient_a, gradient_b)] if count else []
    # In each row the loss uses one element, at equal places in both runs, which has a gradient.
    used = [side != 0 for side in sides]
    if not sides or not ((used[0] == used[1]).all() and (used[0].sum(axis=1) == 1).all()):
        return None
    first, second = (side.sum(axis=1) for side in sides)
    linear = slope[1] * (1 - NEAR)  # beyond, the gradient does not depend on the distance x − t
    known = (np.abs(first) < linear) & (np.abs(second) < linear)
    difference: Array = np.where(known, (first - second) / slope[0], 0.0)
    return difference


def _slope(ops: Sequence[Operation]) -> tuple[float, float] | None:
    """Return the gradient of the loss by x for each unit of x − t, and the largest gradient by x.

    x is the loss's input, t its target. None unless the operations are a mean or a sum over one
    squared, smooth or Huber loss, perhaps times a number.
    """
    losses = [op for op in ops if LOSS.match(op.name)]
    others = [op for op in ops if not LOSS.match(op.name) and not LOOKING.match(op.name)]
    if len(losses) != 1 or not all(LINEAR.match(op.name) for op in others):
        return None
    arguments = losses[0].arguments
    count = COUNT.search(arguments)
    if count is None or "reduction=none" in arguments:
        return None
    scale = 1 / int(count[1]) if "reduction=mean" in arguments else 1.0
    for op in others:
        number = _number("other", op.arguments)
        if not number:
            return None
        scale *= number if op.name.startswith("Mul") else 1 / number
    if losses[0].name.startswith("Mse"):
        return 2 * scale, math.inf
    if losses[0].name.startswith("Huber"):
        return scale, abs(scale) * (_number("delta", arguments) or 1.0)
    beta = _number("beta", arguments) or 1.0
    return scale / beta, abs(scale)


def _number(name: str, arguments: str) -> float | None:
    number = re.search(NUMBER.format(name), arguments)
    return float(number[1]) if number else None


def _tables(frontier: Frontier, row: int, count: int) -> Iterator[tuple[str, Array]]:
    """Yield recorded values with `count` rows that are equal in both runs, as (name, table).

    They were recorded in the step of `row`, before `row`; the latest comes first. At most
    MOST_VALUES are read. Each table has shape (count, columns).
    """
    a = frontier.alignment.a
    before = (a.step == a.step[row]) & (a.order < a.order[row])
    rows = np.flatnonzero(before & (a.rank == a.tensors[a.tensor[row]].rank))
    rows = rows[(frontier.status[rows] == EQUAL) & (a.figures["numel"][rows] <= MOST_ELEMENTS)]
    rows = rows[np.argsort(-a.order[rows], kind="stable")]
    tried = 0
    for candidate in rows.tolist():
        tensor, shape = a.tensors[a.tensor[candidate]], a.shapes[a.shape[candidate]]
        wide = len(shape) == 2 and shape[1] <= MOST_COLUMNS
        if tensor.kind != "value" or shape[:1] != (count,) or not (wide or len(shape) == 1):
            continue
        table = values(a, candidate)
        if table is not None:
            yield tensor.name, table.reshape(count, -1)
        tried += 1
        if tried == MOST_VALUES:
            return


def _factor(difference: Array, table: Array) -> float:
    """Return the factor by which each difference is a multiple of an element in its row.

    0.0 where no factor serves all rows. difference: one number for each row of `table`. table:
    (rows, columns).
    """
    largest = int(np.abs(difference).argmax())
    near = NEAR * 10 * float(np.abs(difference[largest]))
    with np.errstate(all="ignore"):
        candidates = difference[largest] / table[largest]
    for factor in candidates[np.isfinite(candidates)].tolist():
        apart = np.abs(difference[:, None] - factor * table).min(axis=1)
        if (apart <= near).all():
            return float(factor)
    return 0.0
