"""The rules for convolutions and their gradients, in some of their elements.

Strides, padding, dilation and groups are read off the text of the module, which a run's header has.
Those of transposed convolutions are in `transposed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operand, Operands
from anchorlib.diagnosis.recomputation.recipes import LONGEST, SAMPLE, Recipe, spread
from anchorlib.formulas import (
    Elements,
    Strides,
    arriving,
    by_channels,
    convolution,
    convolution_backward,
    in_groups,
    patches,
)

__all__ = ["Case", "case_of", "convolving", "of_gradient", "spread_groups"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
_SETTING: Final = re.compile(r"\b(stride|padding|dilation|groups)=\(?([0-9, ]+)\)?")
_OTHER: Final = re.compile(r"padding_mode=(?!'?zeros)|\bpadding='?(?!same|valid)[a-z]")
"""What no rule knows: padding not by zeros, or by a name that it does not know."""
_TRANSPOSED: Final = re.compile(r"Transpose|transposed=True")
_SAME: Final = re.compile(r"\bpadding='?same")


class Case(NamedTuple):
    """A convolution: the shapes of input, weight and output, and how it moves."""

    x: Shape
    w: Shape
    out: Shape
    how: Strides

    @property
    def places(self) -> int:
        """How many places the output has, in all images."""
        return self.out[0] * int(np.prod(self.out[2:]))


def convolving(told: Operands, texts: Sequence[str]) -> Recipe | None:
    """The recipe for a convolution's output, or for one of its gradients; None if unfit."""
    if told.own.kind == "value":
        return _output(told, texts)
    if told.child is None or len(told.inputs) > 1:
        return None
    if told.own.kind == "grad":
        return _of_input(told, told.child, texts)
    return _of_parameter(told, told.child, texts)


def _output(told: Operands, texts: Sequence[str]) -> Recipe | None:
    x = told.inputs[0] if len(told.inputs) == 1 else None
    weights = [one for one in told.weights if len(one.shape) > 2]  # a bias has one
    biases = [one for one in told.weights if len(one.shape) == 1]
    if x is None or len(weights) != 1 or len(biases) > 1:
        return None
    w = weights[0]
    case = case_of(texts, x.shape, w.shape, told.own.shape)
    terms = int(np.prod(w.shape[1:]))
    if case is None or terms > LONGEST:
        return None
    groups, size = case.how.groups, w.shape[2:]
    chosen = spread_groups(groups, case.places, case.out[1] // groups)

    def inputs(side: str) -> list[Array]:
        left, right = x.read(side), w.read(side)
        flat = right.reshape(groups, -1, terms)[np.ix_(chosen.groups, chosen.columns)]
        bias = [one.read(side) for one in biases]
        added = [one.reshape(groups, 1, -1)[chosen.groups][:, :, chosen.columns] for one in bias]
        cut = patches(left, size, case.how, chosen.rows)[chosen.groups]
        recorded = [left, right, *(bias or [np.empty(0, np.float32)])]
        return [cut, np.swapaxes(flat, 1, 2), *added, *recorded]

    function = convolution(chosen, int(np.prod(size)), case.how)
    return Recipe((function,), inputs, lambda own: by_channels(own, groups), chosen.of)


def _of_input(told: Operands, g: Operand, texts: Sequence[str]) -> Recipe | None:
    """The recipe for the gradient of the input: the output's gradient g times the weight."""
    weights = [one for one in told.weights if len(one.shape) > 2]
    if len(weights) != 1:
        return None
    w, own = weights[0], told.own.shape
    case = case_of(texts, own, w.shape, g.shape)
    if case is None:
        return None
    groups, size = case.how.groups, w.shape[2:]
    taps, outputs = int(np.prod(size)), case.out[1] // groups
    if taps * outputs > LONGEST:
        return None
    chosen = spread_groups(groups, own[0] * int(np.prod(own[2:])), own[1] // groups)

    def inputs(side: str) -> list[Array]:
        gradient, weight = g.read(side), w.read(side)
        left = arriving(gradient, size, case.how, own[2:], chosen.rows)[chosen.groups]
        parts = weight.reshape(groups, outputs, own[1] // groups, taps)
        right = np.swapaxes(parts, 2, 3).reshape(groups, outputs * taps, -1)
        chosen_weights = right[chosen.groups][:, :, chosen.columns]
        return [left, chosen_weights, gradient, np.zeros(own, np.float32), weight]

    return of_gradient("input", case, chosen, taps, inputs)


def _of_parameter(told: Operands, g: Operand, texts: Sequence[str]) -> Recipe | None:
    """The recipe for the gradient of the weight or the bias, from the output's gradient g."""
    x = told.inputs[0] if told.inputs else None
    is_bias = len(told.own.shape) == 1
    shapes = {one.shape for one in (told.own, *told.weights) if len(one.shape) > 2}
    if x is None or len(shapes) != 1:
        return None
    case = case_of(texts, x.shape, shapes.pop(), g.shape)
    if case is None or case.places > LONGEST or told.own.shape not in (case.w, case.w[:1]):
        return None
    rows, columns = case.out[1] // case.how.groups, int(np.prod(case.w[1:]))
    images = case.places // case.out[0]
    chosen = (
        spread_groups(1, 1, case.out[1])
        if is_bias
        else spread_groups(case.how.groups, rows, columns)
    )

    def inputs(side: str) -> list[Array]:
        gradient, image = g.read(side), x.read(side)
        recorded = [gradient, image, np.zeros(case.w, np.float32)]
        if is_bias:
            flat = by_channels(gradient, 1)[:, :, chosen.columns]
            return [np.ones((1, 1, case.places), np.float32), flat, *recorded]
        left = np.swapaxes(by_channels(gradient, case.how.groups), 1, 2)
        right = patches(image, case.w[2:], case.how, np.arange(case.places))
        left, right = left[chosen.groups][:, chosen.rows], right[chosen.groups]
        return [left, right[:, :, chosen.columns], *recorded]

    return of_gradient("bias" if is_bias else "weight", case, chosen, images, inputs)


def of_gradient(
    part: str, case: Case, chosen: Elements, inner: int, inputs: Callable[[str], list[Array]]
) -> Recipe:
    function = convolution_backward(part, chosen, inner, case.how)
    return Recipe((function,), inputs, lambda own: in_groups(part, own, case.how.groups), chosen.of)


def spread_groups(groups: int, rows: int, columns: int) -> Elements:
    """Some groups, rows and columns: in all about as many elements as one product computes."""
    most = SAMPLE**2
    some = spread(groups, SAMPLE)
    across = spread(columns, max(SAMPLE // len(some), most // (len(some) * rows), 1))
    return Elements(some, spread(rows, most // (len(some) * len(across))), across)


def case_of(
    texts: Sequence[str], x: Shape, w: Shape, out: Shape, *, transposed: bool = False
) -> Case | None:
    """The convolution that has these shapes and that both modules state; None where none has.

    transposed: whether the modules must be transposed convolutions; then `x` is what they make.
    """
    how = _strides(texts, w[2:], transposed=transposed)
    if how is None or len(x) != len(w) or len(out) != len(w) or not np.prod((*x, *w, *out)):
        return None
    fits = x[:2] == (out[0], w[1] * how.groups) and out[1] == w[0] and not w[0] % how.groups
    return Case(x, w, out, how) if fits and out[2:] == how.out(x[2:], w[2:]) else None


def _strides(texts: Sequence[str], size: Shape, *, transposed: bool) -> Strides | None:
    """The strides that both modules state; None where they differ, or state an unknown setting.

    A class that a user derived of torch's states more settings than torch's own. size: the
    weight's in space.
    """
    modules = [one for one in texts if "kernel_size=" in one]
    if any(map(_OTHER.search, modules)):
        return None
    if any(bool(_TRANSPOSED.search(one)) != transposed for one in modules):
        return None
    found = {_stated(one, size) for one in modules}
    how = found.pop() if len(found) == 1 else None
    if how is None or how.groups < 1 or any(len(one) != len(size) for one in how[:3]):
        return None
    return how if all(how.stride) else None


def _stated(text: str, size: Shape) -> Strides | None:
    """What one module states; None where it pads one side more than the other, as `same` may."""
    told = {
        name: tuple(map(int, re.findall(r"[0-9]+", said))) for name, said in _SETTING.findall(text)
    }
    ones = (1,) * len(size)
    dilation = told.get("dilation", ones)
    padding = told.get("padding", (0,) * len(size))
    if _SAME.search(text):
        added = [step * (k - 1) for step, k in zip(dilation, size, strict=False)]
        if any(one % 2 for one in added):
            return None
        padding = tuple(one // 2 for one in added)
    return Strides(told.get("stride", ones), padding, dilation, told.get("groups", (1,))[0])
