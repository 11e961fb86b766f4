"""The rules for transposed convolutions and their gradients, in some of their elements.

A transposed convolution computes what the backward of an ordinary convolution with the same weight
computes for its input. That ordinary convolution, which leads from the transposed convolution's
output back to its input, is what `Case` describes here. So the gradient of a transposed
convolution's input is that ordinary convolution, and in the gradient of its weight the two images
exchange their roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorlib.diagnosis.recomputation.convolutions import (
    Case,
    case_of,
    of_gradient,
    spread_groups,
)
from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.diagnosis.recomputation.recipes import LONGEST, Recipe
from anchorlib.formulas import arriving, by_channels, convolution, patches

__all__ = ["transposing"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def transposing(operands: Operands, texts: Sequence[str]) -> Recipe | None:
    """Return the recipe for a transposed convolution's output, or for one of its gradients.

    None if the operands do not fit a transposed convolution. texts: descriptions of both runs'
    modules.
    """
    made = operands.own if operands.own.kind == "value" else operands.child
    own = [] if operands.own.kind in ("value", "grad") else [operands.own]  # a parameter's gradient
    weights = [weight for weight in (*operands.weights, *own) if len(weight.shape) > 2]
    if made is None or len({weight.shape for weight in weights}) != 1 or len(operands.inputs) > 1:
        return None
    w = weights[0]
    if operands.own.kind == "grad":
        return _of_input(operands, made, w, texts)
    if not operands.inputs:
        return None
    x = operands.inputs[0]
    case = _case(texts, made.shape, w.shape, x.shape)
    if case is None:
        return None
    if operands.own.kind == "value":
        return _output(operands, x, w, case)
    return _of_parameter(operands, made, x, case)


def _case(texts: Sequence[str], out: Shape, w: Shape, x: Shape) -> Case | None:
    """Return the convolution that leads back from the output's shape to the input's; None if unfit.

    texts: descriptions of the modules. out, w, x: the shapes of output, weight and input.
    """
    case = case_of(texts, out, w, x, transposed=True)
    if case is None:
        return None
    least = [
        (n - 1) * stride - 2 * pad + step * (k - 1) + 1
        for n, k, (stride, pad, step) in zip(x[2:], w[2:], case.how.axes, strict=True)
    ]
    extra = tuple(n - one for n, one in zip(out[2:], least, strict=True))
    return case._replace(how=case.how._replace(transposed=True, extra=extra))


def _output(operands: Operands, x: StoredOperand, w: StoredOperand, case: Case) -> Recipe | None:
    biases = [one for one in operands.weights if len(one.shape) == 1]
    groups, size = case.how.groups, case.w[2:]
    taps, terms = int(np.prod(size)), case.w[0] // groups
    if len(biases) > 1 or taps * terms > LONGEST:
        return None
    rows = case.x[0] * int(np.prod(case.x[2:]))
    chosen = spread_groups(groups, rows, case.w[1])

    def inputs(side: str) -> list[Array]:
        image, weight = x.read(side), w.read(side)
        left = arriving(image, size, case.how, case.x[2:], chosen.rows)[chosen.groups]
        parts = weight.reshape(groups, terms, case.w[1], taps)
        right = np.swapaxes(parts, 2, 3).reshape(groups, terms * taps, -1)
        bias = [parameter.read(side) for parameter in biases]
        added = [
            parameter.reshape(groups, 1, -1)[chosen.groups][:, :, chosen.columns]
            for parameter in bias
        ]
        recorded = [image, weight, *(bias or [np.empty(0, np.float32)])]
        return [left, right[chosen.groups][:, :, chosen.columns], *added, *recorded]

    function = convolution(chosen, taps, case.how)
    return Recipe((function,), inputs, lambda own: by_channels(own, groups), chosen.of)


def _of_input(
    operands: Operands, g: StoredOperand, w: StoredOperand, texts: Sequence[str]
) -> Recipe | None:
    """Return the recipe for the gradient of the input; None if the operands do not fit.

    This gradient is a convolution of the output's gradient g with the weight w.
    """
    own = operands.own.shape
    case = _case(texts, g.shape, w.shape, own)
    terms = int(np.prod(w.shape[1:]))
    if case is None or terms > LONGEST:
        return None
    groups, size = case.how.groups, w.shape[2:]
    chosen = spread_groups(groups, case.places, own[1] // groups)

    def inputs(side: str) -> list[Array]:
        gradient, weight = g.read(side), w.read(side)
        left = patches(gradient, size, case.how, chosen.rows)[chosen.groups]
        flat = weight.reshape(groups, -1, terms)[np.ix_(chosen.groups, chosen.columns)]
        return [left, np.swapaxes(flat, 1, 2), gradient, np.zeros(own, np.float32), weight]

    return of_gradient("input", case, chosen, int(np.prod(size)), inputs)


def _of_parameter(
    operands: Operands, g: StoredOperand, x: StoredOperand, case: Case
) -> Recipe | None:
    """Return the recipe for the gradient of the weight or bias; None if the operands do not fit.

    g: the gradient of the output. x: the input. case: the convolution that leads from the output
    back to the input.
    """
    groups, images = case.how.groups, case.x[0]
    is_bias = len(operands.own.shape) == 1
    places = images * int(np.prod(case.x[2:])) if is_bias else case.places
    if places > LONGEST or operands.own.shape != (case.x[1:2] if is_bias else case.w):
        return None
    rows, columns = case.w[0] // groups, int(np.prod(case.w[1:]))
    chosen = spread_groups(1, 1, case.x[1]) if is_bias else spread_groups(groups, rows, columns)

    def inputs(side: str) -> list[Array]:
        gradient, image = g.read(side), x.read(side)
        recorded = [gradient, image, np.zeros(case.w, np.float32)]
        if is_bias:
            flat = by_channels(gradient, 1)[:, :, chosen.columns]
            return [np.ones((1, 1, places), np.float32), flat, *recorded]
        left = np.swapaxes(by_channels(image, groups), 1, 2)
        right = patches(gradient, case.w[2:], case.how, np.arange(places))
        left, right = left[chosen.groups][:, chosen.rows], right[chosen.groups]
        return [left, right[:, :, chosen.columns], *recorded]

    part = "bias" if is_bias else "weight"
    return of_gradient(part, case, chosen, places // images, inputs)
