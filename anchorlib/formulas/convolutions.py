"""Convolutions as products of matrices: patches of the input times the weights of each channel.

The order in which a library adds the terms depends on its blocks and on the machine. The orders of
`products` are tried, channels first and channels last; where none of them fits, the order of a run
stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as every
from typing import Any, NamedTuple

import numpy as np

from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel
from anchorlib.formulas.products import Part, product
from anchorlib.formulas.rounded import Rounded

__all__ = ["Strides", "convolution", "patches"]

Array = np.ndarray[Any, Any]


class Strides(NamedTuple):
    """How a convolution without groups moves over its input: a number for each axis of space."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def patches(x: Array, size: tuple[int, ...], how: Strides, places: Array) -> Array:
    """The inputs of some elements of the output, as a matrix (places, channels · taps).

    x: (batch, channels, *space). size: the weight's size in space.
    places: flat indices into (batch, *space of the output).
    """
    edges = [(0, 0), (0, 0), *((pad, pad) for pad in how.padding)]
    padded = np.pad(x, edges)
    out = [
        (n + 2 * pad - step * (k - 1) - 1) // stride + 1
        for n, k, stride, pad, step in zip(x.shape[2:], size, *how, strict=True)
    ]
    batch, *where = np.unravel_index(places, (x.shape[0], *out))
    taken = []
    for tap in every(*map(range, size)):
        at = [
            p * stride + t * step
            for p, t, stride, step in zip(where, tap, how.stride, how.dilation, strict=True)
        ]
        taken.append(np.moveaxis(padded, 1, -1)[(batch, *at)])
    return np.stack(taken, -1).reshape(len(places), -1)


def convolution(places: Array, columns: Array, taps: int, how: Strides) -> Function:
    """Some elements of a convolution of x with weight w and bias b.

    Inputs of the function: patches (places, k), weights (k, channels), b (channels,) if there is a
    bias; then x and w as they were recorded, for torch's kernel.
    places, columns: the places and channels of the elements. taps: the weight's size in space.
    """
    part = Part(np.arange(len(places)), columns)

    def ordered(formula: Formula, *, last: bool) -> Callable[..., Rounded]:
        def compute(lib: Any, left: Rounded, right: Rounded, *rest: Rounded) -> Rounded:
            if last:
                order = np.arange(left.values.shape[1]).reshape(-1, taps).T.reshape(-1)
                left, right = left.of(left.values[:, order]), right.of(right.values[order])
            return formula.compute(lib, left, right, *rest[:-2])

        return compute

    forms = [
        Formula(f"{one.name}, channels {'last' if last else 'first'}", ordered(one, last=last))
        for last in (False, True)
        for one in product(part).formulas
    ]

    def library(inputs: Sequence[Array], precision: str) -> Array:
        *_, x, w = inputs
        bias = inputs[2] if len(inputs) == 5 else None  # patches, weights, bias, x, w
        zeros = [0] * len(how.stride)
        output = kernel("convolution", [x, w, bias, *map(list, how), False, zeros, 1], precision)
        flat = np.moveaxis(output, 1, -1).reshape(-1, output.shape[1])
        chosen: Array = flat[np.ix_(places, columns)]
        return chosen

    return Function("convolution", tuple(forms), (Kernel("torch's kernel", library),))
