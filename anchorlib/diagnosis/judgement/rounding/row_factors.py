"""Values of which each row is the other run's row times a number near 1, of either sign.

    spread = (x - mean).square().mean(1).sqrt()          (x - mean) / spread
    spread = (x.square().mean(1) - mean ** 2).sqrt()     (x - mean) / spread

Both spreads are right. The second rounds by many eps of itself where the mean is large beside the
spread. A norm records what autograd follows alone: of data without a gradient neither the mean nor
the spread. But its result shows how they differ: what is divided by one spread is off by one
factor. Rounding makes some of these factors larger and others smaller, where another eps or another
divisor makes all of them larger, or all of them smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.rounding.formats import kind_of, type_eps
from anchorlib.diagnosis.judgement.series import values
from anchorlib.errors import StoreError

__all__ = ["differs_by_row_factors"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
LARGEST = 2.0**-13
"""How far a factor may be from 1: a quarter of what a spread that is computed in float16 is."""
ROUNDED = 2.0
"""By how many eps of itself a factor may vary along its row, in the mean over its elements: these
are rounded once more than the factor."""
FACTORS, LONG = 16, 4
"""How many factors there are at least, and of how many elements each."""
SHARE = 0.2
"""The share of factors that are larger than 1 at least, and of those that are smaller."""
MOST_ELEMENTS = 1 << 22


def differs_by_row_factors(frontier: Frontier, row: int, row_b: int) -> bool:
    """Return whether B's value is A's times factors, each of which rounding may have made.

    The rows lie along one of the axes. Factors are at most LARGEST from 1, on both sides of it.
    False for records that are not float32, and for values whose operations read no tensor without
    a record.
    row, row_b: the value's rows in A and in B.
    """
    a, b = frontier.alignment.a, frontier.alignment.b
    shape = a.shapes[a.shape[row]]
    records = ((a, row), (b, row_b))
    if kind_of(frontier, row) != "value" or not frontier.ancestry(row).untracked:
        return False
    if any(type_eps(*one) != EPS32 for one in records) or a.figures["numel"][row] > MOST_ELEMENTS:
        return False
    try:
        sides = [values(*one) for one in records]
    except StoreError:
        return False
    if any(side is None or len(side) != int(np.prod(shape)) for side in sides):
        return False
    of_a, of_b = (np.asarray(side, np.float64).reshape(shape) for side in sides)
    return any(_factors(of_a, of_b, axis) for axis in range(len(shape)))


def _factors(of_a: Array, of_b: Array, axis: int) -> bool:
    """Return whether rows along an axis are multiples of one another, as rounding makes them."""
    length = of_a.shape[axis]
    rows_a, rows_b = (np.moveaxis(of, axis, -1).reshape(-1, length) for of in (of_a, of_b))
    squares = np.square(rows_a).sum(axis=1)
    whole = squares > 0
    if length < LONG or int(whole.sum()) < FACTORS:
        return False
    apart = rows_b - rows_a
    factors = np.zeros(len(rows_a))
    factors[whole] = (rows_a * apart).sum(axis=1)[whole] / squares[whole]
    rest = np.linalg.norm(apart - factors[:, None] * rows_a)
    larger, smaller = (float((side > 0).sum()) / whole.sum() for side in (factors, -factors))
    return bool(
        np.abs(factors).max() <= LARGEST
        and rest <= ROUNDED * EPS32 * np.linalg.norm(rows_a)
        and min(larger, smaller) >= SHARE
    )
