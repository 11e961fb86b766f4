"""The rules for losses: mean squared error, log-softmax and cross entropy, and their gradients.

A rule makes a recipe of operands: how the record `own` is computed again. Targets must have been
recorded, except for the gradient of a cross entropy: its sign at the target class differs from its
sign at all other classes, so that the target follows from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.diagnosis.recomputation.recipes import Recipe, alike, named
from anchorlib.formulas import (
    cross_entropy,
    cross_entropy_backward,
    log_softmax,
    log_softmax_backward,
    mse_loss,
    mse_loss_backward,
)

__all__ = [
    "entropy",
    "entropy_slope",
    "logarithm",
    "logarithm_slope",
    "squares",
    "squares_slope",
]

Array = np.ndarray[Any, Any]


def squares(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for a mean, or sum, of squared differences; None if operands do not fit.

    Both functions are tried.
    """
    if operands.own.shape or len(operands.inputs) != 2:  # what is compared
        return None
    x, t = operands.inputs
    if x.shape != t.shape:
        return None
    functions = mse_loss("mean"), mse_loss("sum")
    return Recipe(functions, lambda side: [_flat(x, side), _flat(t, side)], _flattened)


def squares_slope(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for the gradient of a squared loss's input; None if operands do not fit.

    All elements are computed, since the mean divides by their number.
    """
    g, x = operands.child, named(operands, operands.own.name)
    others = [
        operand
        for operand in operands.inputs
        if operand is not x and operand.shape == operands.own.shape
    ]
    if g is None or g.shape or x is None or x.shape != operands.own.shape or len(others) != 1:
        return None

    def inputs(side: str) -> list[Array]:
        return [_flat(g, side), _flat(x, side), _flat(others[0], side)]

    return Recipe((mse_loss_backward("mean"), mse_loss_backward("sum")), inputs, _flattened)


def logarithm(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for a log-softmax along the last axis; None if operands do not fit."""
    x = alike(operands)
    if x is None or not x.shape:
        return None
    return Recipe((log_softmax(),), lambda side: [x.read(side)], lambda own: own)


def logarithm_slope(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for the gradient of a log-softmax's input; None if operands do not fit."""
    g, y = operands.child, operands.output
    if g is None or y is None or not y.shape or not g.shape == y.shape == operands.own.shape:
        return None
    return Recipe(
        (log_softmax_backward(),), lambda side: [g.read(side), y.read(side)], lambda own: own
    )


def entropy(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for a mean cross entropy; None if operands do not fit.

    The logits (two axes) and the target classes (int64) must have been recorded.
    """
    x = next((operand for operand in operands.inputs if len(operand.shape) == 2), None)
    t = next((operand for operand in operands.inputs if operand.dtype == "int64"), None)
    if operands.own.shape or x is None or t is None or t.shape != x.shape[:1]:
        return None

    def inputs(side: str) -> list[Array]:
        return [x.read(side), (t.read(side)[:, None] == np.arange(x.shape[1])).astype(np.float64)]

    return Recipe((cross_entropy(),), inputs, _flattened)


def entropy_slope(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for the gradient of a cross entropy's logits; None if operands do not fit.

    The target classes follow from the gradient's signs.
    """
    g, x = operands.child, named(operands, operands.own.name)
    if g is None or g.shape or x is None or len(x.shape) != 2 or x.shape != operands.own.shape:
        return None
    if any(_wanted(operands.own, g, side) is None for side in "ab"):
        return None

    def inputs(side: str) -> list[Array]:
        wanted = _wanted(operands.own, g, side)
        assert wanted is not None, "it was looked at before"
        return [_flat(g, side), x.read(side), wanted]

    return Recipe((cross_entropy_backward(),), inputs, lambda own: own)


def _wanted(own: StoredOperand, g: StoredOperand, side: str) -> Array | None:
    """Return 1 at the target class of each row, 0 elsewhere, by the signs of the logits' gradient.

    A row whose gradient is zero has no target class: the loss ignores it. None if the signs do not
    show one target class in each of the other rows.
    own: the gradient of the logits. g: the gradient of the loss. side: the run, "a" or "b".
    """
    slope = own.read(side) * np.sign(g.read(side))
    wanted = slope < 0
    counts = wanted.sum(-1)
    left_out = ~slope.any(-1)
    if not counts.any() or not np.array_equal(counts, 1 - left_out):
        return None
    return wanted.astype(np.float64)


def _flat(operand: StoredOperand, side: str) -> Array:
    return operand.read(side).reshape(-1)


def _flattened(own: Array) -> Array:
    return own.reshape(-1)
