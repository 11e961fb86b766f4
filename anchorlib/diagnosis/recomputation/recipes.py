"""What a rule gives: functions, and what of the operands goes into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operand, Operands
from anchorlib.formulas import Function

__all__ = ["ELEMENTS", "LONGEST", "SAMPLE", "Recipe", "alike", "named", "spread"]

Array = np.ndarray[Any, Any]
SAMPLE: Final = 32
"""Rows, and columns, of a product that are looked at."""
ELEMENTS: Final = 1 << 20
"""Elements of other outputs that are looked at."""
LONGEST: Final = 1 << 14
"""Terms of a product's element that are added up."""


class Recipe(NamedTuple):
    """How to compute a record again.

    functions: what it may be. inputs: the operands of a side ("a", "b") in their order.
    output: what of the record's own values is looked at.
    """

    functions: tuple[Function, ...]
    inputs: Callable[[str], Sequence[Array]]
    output: Callable[[Array], Array]
    part: Callable[[Array], Array] | None = None


def alike(told: Operands) -> Operand | None:
    """The one input that has the record's own shape."""
    fitting = [one for one in told.inputs if one.shape == told.own.shape]
    return fitting[0] if len(fitting) == 1 else None


def named(told: Operands, name: str) -> Operand | None:
    """The input of that name."""
    return next((one for one in told.inputs if one.name == name), None)


def spread(count: int, most: int) -> Array:
    """Some of so many numbers, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
