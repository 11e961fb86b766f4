"""Weight gradients of convolutions computed again in float64: Σ x·g over samples and positions."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.sizes.sums import Task, certain, task_of

__all__ = ["Geometry", "convolutions", "geometry_of"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
STRIDES = 4
"""The largest stride that is tried where no module states it."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Stride, padding and dilation of a convolution, one number for each axis in space."""

    stride: Shape
    padding: Shape
    dilation: Shape


def convolutions(
    x: Array, gradient: Array, shape: Shape, geometry: Geometry | None
) -> Iterator[Task]:
    """Yield tasks that compute the weight gradients of this shape which a convolution may have.

    x: its input, (N, C, *sizes). gradient: its output's gradient, (N, O, *sizes). shape: the
    weight's. geometry: None where the geometry has to be found by trial.
    """
    if not (x.ndim == gradient.ndim == len(shape) > 2 and x.shape[0] == gradient.shape[0]):
        return
    if gradient.shape[1] != shape[0] or not shape[1] or x.shape[1] % shape[1]:
        return
    groups = x.shape[1] // shape[1]
    if shape[0] % groups:
        return
    sizes = x.shape[2:], gradient.shape[2:], shape[2:]
    tried = _geometries(*sizes) if geometry is None else iter([geometry])
    terms = gradient.size // max(gradient.shape[1], 1)
    for candidate in tried:
        if _fits(candidate, *sizes):

            def form(p: Array, q: Array, lies: Geometry = candidate) -> Array:
                return _weight(p, q, shape, lies, groups)

            yield certain(task_of(form, x, gradient, terms, math.prod(shape)))


def _geometries(given: Shape, made: Shape, kernel: Shape) -> Iterator[Geometry]:
    """Yield the geometries without dilation, equal along all axes, that turn `given` into `made`.

    given, made, kernel: the sizes in space of input, output and kernel.
    """
    ones = (1,) * len(kernel)
    for stride, padding in itertools.product(range(1, STRIDES + 1), range(max(kernel))):
        candidate = Geometry((stride,) * len(ones), (padding,) * len(ones), ones)
        if _fits(candidate, given, made, kernel):
            yield candidate


def _fits(geometry: Geometry, given: Shape, made: Shape, kernel: Shape) -> bool:
    if len(geometry.stride) != len(kernel) or min(geometry.stride) < 1:
        return False
    axes = zip(
        given, made, kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True
    )
    return all((i + 2 * p - d * (k - 1) - 1) // s + 1 == o for i, o, k, s, p, d in axes)


def _weight(x: Array, gradient: Array, shape: Shape, lies: Geometry, groups: int) -> Array:
    """Return the gradient of a convolution's weight, computed for each kernel position in turn.

    x: the input, (N, C, *sizes). gradient: the output's, (N, O, *sizes). shape: the weight's. lies:
    stride, padding and dilation.
    """
    around = [(0, 0), (0, 0), *((one, one) for one in lies.padding)]
    padded = np.pad(x, around)
    gradients = np.empty(shape)
    left = _by_channel(gradient, groups)
    for place in np.ndindex(shape[2:]):
        starts = [at * step for at, step in zip(place, lies.dilation, strict=True)]
        cut = tuple(
            slice(start, start + (size - 1) * step + 1, step)
            for start, size, step in zip(starts, gradient.shape[2:], lies.stride, strict=True)
        )
        right = _by_channel(padded[(slice(None), slice(None), *cut)], groups)
        part = np.matmul(left, right.swapaxes(-1, -2))
        gradients[(..., *place)] = part.reshape(shape[:2])
    return gradients


def _by_channel(values: Array, groups: int) -> Array:
    """Return values of shape (N, C, *sizes) reshaped to (groups, C / groups, N · sizes)."""
    turned = np.moveaxis(values, 1, 0)
    grouped: Array = turned.reshape(groups, values.shape[1] // groups, -1)
    return grouped


def geometry_of(text: object, axes: int) -> Geometry | None:
    """Return the geometry that a module's description states; None where it cannot be read.

    text: such as "Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))"; None for anything that is no
    text. axes: how many axes in space.
    """
    if not isinstance(text, str) or "stride=" not in text or "padding_mode=" in text:
        return None
    sizes = [_numbers(text, name, axes, usual) for name, usual in _USUAL]
    return None if any(one is None for one in sizes) else Geometry(*(one or () for one in sizes))


_USUAL: Sequence[tuple[str, int]] = (("stride", 1), ("padding", 0), ("dilation", 1))


def _numbers(text: str, name: str, axes: int, usual: int) -> Shape | None:
    if f"{name}=" not in text:
        return (usual,) * axes
    matching = re.search(rf"\b{name}=\(([\d, ]+)\)", text)
    numbers = tuple(int(number) for number in re.findall(r"\d+", matching[1])) if matching else ()
    return numbers if len(numbers) == axes else None
