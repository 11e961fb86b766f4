"""The rule for attention whose queries, keys and values were recorded under three names."""

from __future__ import annotations

from itertools import permutations
from typing import Any, Final

from anchorlib.diagnosis.recomputation.operands import Operands
from anchorlib.diagnosis.recomputation.recipes import Recipe
from anchorlib.formulas import attention

__all__ = ["attending"]

_MOST: Final = 1 << 20  # scores that are computed for each way of computing


def attending(told: Operands, _: Any) -> Recipe | None:
    """The recipe for attention; None where the operands are not three tensors of its shape.

    Which input is the query, the key and the value, and whether the attention is causal, is found
    by trial: all twelve functions are in the recipe, and the nearest result tells.
    """
    shape = told.own.shape
    if len(told.inputs) != 3 or any(one.shape != shape for one in told.inputs):
        return None
    if len(shape) < 2 or told.own.read("a").size // shape[-1] * shape[-2] > _MOST:
        return None
    functions = tuple(
        attention(causal=causal, order=(q, k, v))
        for causal in (False, True)
        for q, k, v in permutations(range(3))
    )
    return Recipe(functions, lambda side: [one.read(side) for one in told.inputs], lambda own: own)
