"""The rules that compute convolutions and their gradients again, in some of their elements.

Strides, padding, dilation and groups are read off the text of the module, which a run's header has.
Those of transposed convolutions are in `transposed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
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
"""Settings that no rule knows: padding by other numbers than zeros, or by an unknown name."""
_TRANSPOSED: Final = re.compile(r"Transpose|transposed=True")
_MODULE: Final = re.compile(r"\w+\(.*\bkernel_size=")
"""A module's text. The arguments of an operation, as `unfold`, state a kernel's size as well."""
_SAME: Final = re.compile(r"\bpadding='?same")


class Case(NamedTuple):
    """A convolution: the shapes of input, weight and output, and its strides and padding."""

    x: Shape
    w: Shape
    out: Shape
    how: Strides

    @property
    def places(self) -> int:
        """How many positions the output has in space, in all images of the batch together."""
        return self.out[0] * int(np.prod(self.out[2:]))


def convolving(operands: Operands, texts: Sequence[str]) -> Recipe | None:
    """Return the recipe for a convolution's output, or one of its gradients.

    None if the operands do not fit a convolution. Where `padding='same'` pads one end of an axis
    more than the other, torch appends zeros to the input and pads both ends alike; the convolution
    of the longer input is computed.
    texts: descriptions of the modules of both runs.
    """
    excess = _excess(operands, texts)
    if not any(excess):
        return _convolving(operands, texts)
    if operands.own.kind == "grad":
        how = _convolving(replace(operands, own=_appended(operands.own, excess)), texts, excess)
        if how is None:
            return None
        return how._replace(output=lambda own: how.output(_with_zeros(own, excess)))
    inputs = tuple(_appended(operand, excess) for operand in operands.inputs)
    return _convolving(replace(operands, inputs=inputs), texts)


def _excess(operands: Operands, texts: Sequence[str]) -> Shape:
    """Return how many zeros more `padding='same'` appends than it prepends, on each axis in space.

    () where not all modules pad by `padding='same'`, or they pad differently.
    """
    sizes = [
        weight.shape[2:] for weight in (*operands.weights, operands.own) if len(weight.shape) > 2
    ]
    modules = [text for text in texts if _MODULE.match(text)]
    if not sizes or not modules or not all(map(_SAME.search, modules)):
        return ()
    added = {_added(module, sizes[0]) for module in modules}
    return tuple(one % 2 for one in added.pop()) if len(added) == 1 else ()


def _added(text: str, size: Shape) -> Shape:
    """Return how many positions a module with `padding='same'` adds in all, on each axis in space.

    text: the module's description. size: the kernel's size.
    """
    dilation = _settings(text).get("dilation", (1,) * len(size))
    return tuple(step * (k - 1) for step, k in zip(dilation, size, strict=False))


def _appended(operand: StoredOperand, excess: Shape) -> StoredOperand:
    if len(operand.shape) != len(excess) + 2:
        return operand
    space = (n + more for n, more in zip(operand.shape[2:], excess, strict=True))
    shape = (*operand.shape[:2], *space)
    return replace(operand, shape=shape, read=lambda side: _with_zeros(operand.read(side), excess))


def _with_zeros(x: Array, excess: Shape) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *((0, more) for more in excess)])


def _convolving(operands: Operands, texts: Sequence[str], excess: Shape = ()) -> Recipe | None:
    """Return the recipe where both ends are padded alike; None if the operands do not fit.

    excess: by how many positions each axis of the gradient of the input (`own`) was lengthened;
    these positions are not compared.
    """
    if operands.own.kind == "value":
        return _output(operands, texts)
    if operands.child is None or len(operands.inputs) > 1:
        return None
    if operands.own.kind == "grad":
        return _of_input(operands, operands.child, texts, excess)
    return _of_parameter(operands, operands.child, texts)


def _output(operands: Operands, texts: Sequence[str]) -> Recipe | None:
    x = operands.inputs[0] if len(operands.inputs) == 1 else None
    weights = [weight for weight in operands.weights if len(weight.shape) > 2]  # a bias has one
    biases = [weight for weight in operands.weights if len(weight.shape) == 1]
    if x is None or len(weights) != 1 or len(biases) > 1:
        return None
    w = weights[0]
    case = case_of(texts, x.shape, w.shape, operands.own.shape)
    terms = int(np.prod(w.shape[1:]))
    if case is None or terms > LONGEST:
        return None
    groups, size = case.how.groups, w.shape[2:]
    chosen = spread_groups(groups, case.places, case.out[1] // groups)

    def inputs(side: str) -> list[Array]:
        left, right = x.read(side), w.read(side)
        flat = right.reshape(groups, -1, terms)[np.ix_(chosen.groups, chosen.columns)]
        bias = [parameter.read(side) for parameter in biases]
        added = [
            parameter.reshape(groups, 1, -1)[chosen.groups][:, :, chosen.columns]
            for parameter in bias
        ]
        cut = patches(left, size, case.how, chosen.rows)[chosen.groups]
        recorded = [left, right, *(bias or [np.empty(0, np.float32)])]
        return [cut, np.swapaxes(flat, 1, 2), *added, *recorded]

    function = convolution(chosen, int(np.prod(size)), case.how)
    return Recipe((function,), inputs, lambda own: by_channels(own, groups), chosen.of)


def _of_input(
    operands: Operands, g: StoredOperand, texts: Sequence[str], excess: Shape
) -> Recipe | None:
    """Return the recipe for the gradient of the input; None if the operands do not fit.

    It is the output's gradient g times the weight. excess: as in `_convolving`.
    """
    weights = [one for one in operands.weights if len(one.shape) > 2]
    if len(weights) != 1:
        return None
    w, own = weights[0], operands.own.shape
    case = case_of(texts, own, w.shape, g.shape)
    if case is None:
        return None
    groups, size = case.how.groups, w.shape[2:]
    taps, outputs = int(np.prod(size)), case.out[1] // groups
    if taps * outputs > LONGEST:
        return None
    recorded = (own[0], *(n - more for n, more in zip_longest(own[2:], excess, fillvalue=0)))
    chosen = spread_groups(groups, int(np.prod(recorded)), own[1] // groups)
    places = np.unravel_index(chosen.rows, recorded)
    chosen = chosen._replace(rows=np.ravel_multi_index(places, (own[0], *own[2:])))

    def inputs(side: str) -> list[Array]:
        gradient, weight = g.read(side), w.read(side)
        left = arriving(gradient, size, case.how, own[2:], chosen.rows)[chosen.groups]
        parts = weight.reshape(groups, outputs, own[1] // groups, taps)
        right = np.swapaxes(parts, 2, 3).reshape(groups, outputs * taps, -1)
        chosen_weights = right[chosen.groups][:, :, chosen.columns]
        return [left, chosen_weights, gradient, np.zeros(own, np.float32), weight]

    return of_gradient("input", case, chosen, taps, inputs)


def _of_parameter(operands: Operands, g: StoredOperand, texts: Sequence[str]) -> Recipe | None:
    """Return the recipe for the gradient of the weight or bias; None if the operands do not fit.

    g: the gradient of the output.
    """
    x = operands.inputs[0] if operands.inputs else None
    is_bias = len(operands.own.shape) == 1
    shapes = {weight.shape for weight in (operands.own, *operands.weights) if len(weight.shape) > 2}
    if x is None or len(shapes) != 1:
        return None
    case = case_of(texts, x.shape, shapes.pop(), g.shape)
    if case is None or case.places > LONGEST or operands.own.shape not in (case.w, case.w[:1]):
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
    """Return some of the groups, rows and columns, evenly spread: about SAMPLE² elements in all.

    A convolution is computed as one matrix product for each group. groups, rows, columns: how many
    groups there are, and how many rows and columns a group has.
    """
    most = SAMPLE**2
    some = spread(groups, SAMPLE)
    across = spread(columns, max(SAMPLE // len(some), most // (len(some) * rows), 1))
    return Elements(some, spread(rows, most // (len(some) * len(across))), across)


def case_of(
    texts: Sequence[str], x: Shape, w: Shape, out: Shape, *, transposed: bool = False
) -> Case | None:
    """Return the convolution that the modules of both runs state; None if the shapes do not fit it.

    None, too, if the modules differ, or a setting is unknown.
    x, w, out: the shapes of input, weight and output.
    transposed: whether the modules must be transposed convolutions; then `x` is the shape of what
    they make, and `out` that of what they are given.
    """
    how = _strides(texts, w[2:], transposed=transposed)
    if how is None or len(x) != len(w) or len(out) != len(w) or not np.prod((*x, *w, *out)):
        return None
    fits = x[:2] == (out[0], w[1] * how.groups) and out[1] == w[0] and not w[0] % how.groups
    return Case(x, w, out, how) if fits and out[2:] == how.out(x[2:], w[2:]) else None


def _strides(texts: Sequence[str], size: Shape, *, transposed: bool) -> Strides | None:
    """Return how a convolution moves over its input (`Strides`), as its module states it.

    None where the module's texts in A and in B state different settings, and where a setting is
    unknown: a class that a user derived from one of torch's may state further settings.
    texts: the printed forms of the module, of each run.
    size: the sizes of the weight's axes in space. transposed: whether the modules must be
    transposed convolutions.
    """
    modules = [text for text in texts if _MODULE.match(text)]
    if any(map(_OTHER.search, modules)):
        return None
    if any(bool(_TRANSPOSED.search(module)) != transposed for module in modules):
        return None
    stated = {_stated(module, size) for module in modules}
    how = stated.pop() if len(stated) == 1 else None
    if how is None or how.groups < 1 or any(len(one) != len(size) for one in how[:3]):
        return None
    return how if all(how.stride) else None


def _stated(text: str, size: Shape) -> Strides:
    """Return the strides, padding, dilation and groups that a module states, or the defaults."""
    settings = _settings(text)
    ones = (1,) * len(size)
    padding = settings.get("padding", (0,) * len(size))
    if _SAME.search(text):
        padding = tuple(places // 2 for places in _added(text, size))
    dilation = settings.get("dilation", ones)
    return Strides(settings.get("stride", ones), padding, dilation, settings.get("groups", (1,))[0])


def _settings(text: str) -> dict[str, Shape]:
    """Return the numbers of a convolution's settings, as a module's description states them.

    The keys are "stride", "padding", "dilation" and "groups"; each value is a tuple, such as (2,)
    for `groups=2`. What the description leaves out, or states in words (`padding='same'`), is
    missing.
    """
    return {
        name: tuple(map(int, re.findall(r"[0-9]+", said))) for name, said in _SETTING.findall(text)
    }
