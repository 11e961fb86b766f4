"""The recipe for computing a record again: candidate functions and the operands that they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.formulas import Function

__all__ = ["ELEMENTS", "LONGEST", "SAMPLE", "Recipe", "alike", "named", "spread"]

Array = np.ndarray[Any, Any]
SAMPLE: Final = 32
"""Rows, and columns, of a product that are computed."""
ELEMENTS: Final = 1 << 20
"""Elements of other outputs that are computed."""
LONGEST: Final = 1 << 14
"""The most terms of a product's element: longer sums take too long."""


class Recipe(NamedTuple):
    """How to compute a record again from its operands.

    functions: the candidates, of which one made the record.
    inputs: returns the operands of the functions, in order, for a run ("a" or "b").
    output: returns the record's values, cut and shaped as the functions' results are.
    part: picks the elements that the functions compute; None where they compute all.
    """

    functions: tuple[Function, ...]
    inputs: Callable[[str], Sequence[Array]]
    output: Callable[[Array], Array]
    part: Callable[[Array], Array] | None = None


def alike(operands: Operands) -> StoredOperand | None:
    """Return the operand among the inputs that has the record's shape; None unless only one has."""
    fitting = [operand for operand in operands.inputs if operand.shape == operands.own.shape]
    return fitting[0] if len(fitting) == 1 else None


def named(operands: Operands, name: str) -> StoredOperand | None:
    """Return the operand among `operands.inputs` that has this name; None without one."""
    return next((operand for operand in operands.inputs if operand.name == name), None)


def spread(count: int, most: int) -> Array:
    """Return at most `most` numbers below `count`, evenly spread from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
