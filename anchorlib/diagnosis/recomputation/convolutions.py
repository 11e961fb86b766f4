"""The rule for convolutions of one group whose modules state their strides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operands
from anchorlib.diagnosis.recomputation.recipes import LONGEST, SAMPLE, Recipe, spread
from anchorlib.formulas import Strides, convolution, patches

__all__ = ["convolving"]

Array = np.ndarray[Any, Any]
_MODULE: Final = re.compile(r"\bConv[123]d\((.*)\)")
_SETTING: Final = re.compile(r"(stride|padding|dilation)=\(([0-9, ]+)\)")
_OTHER: Final = re.compile(r"groups=|padding_mode=|padding=\w")
"""Settings of convolutions that the rule does not know: several groups, padding not by zeros."""


def convolving(told: Operands, texts: Sequence[str]) -> Recipe | None:
    """The recipe for a convolution's output, in some of its places and channels; None if unfit."""
    x = next(iter(told.inputs), None)
    weights = [one for one in told.weights if len(one.shape) > 2]  # a bias has one
    bias = [one for one in told.weights if len(one.shape) == 1]
    if told.own.kind != "value" or len(told.inputs) != 1 or x is None:
        return None
    if len(weights) != 1 or len(bias) > 1:
        return None
    w, own = weights[0], told.own.shape
    how = _strides(texts, len(w.shape) - 2)
    if how is None or not _fits(x.shape, w.shape, own, how) or not np.prod(own):
        return None
    size, terms = w.shape[2:], int(np.prod(w.shape[1:]))
    if terms > LONGEST:
        return None
    places = spread(own[0] * int(np.prod(own[2:])), SAMPLE)
    columns = spread(own[1], SAMPLE)

    def inputs(side: str) -> list[Array]:
        left, right = x.read(side), w.read(side)
        flat = right.reshape(right.shape[0], -1).T
        return [
            *(patches(left, size, how, places), flat),
            *(one.read(side) for one in bias),
            *(left, right),
        ]

    def chosen(output: Array) -> Array:
        found: Array = output[np.ix_(places, columns)]
        return found

    function = convolution(places, columns, int(np.prod(size)), how)
    return Recipe(
        (function,), inputs, lambda one: np.moveaxis(one, 1, -1).reshape(-1, own[1]), chosen
    )


def _strides(texts: Sequence[str], axes: int) -> Strides | None:
    """The strides that both modules state; None where they differ, or state an unknown setting."""
    found = {one[1] for text in texts for one in [_MODULE.search(text)] if one is not None}
    if len(found) != 1 or _OTHER.search(text := found.pop()):
        return None
    told = {
        name: tuple(map(int, re.findall(r"[0-9]+", said))) for name, said in _SETTING.findall(text)
    }
    ones = (1,) * axes
    how = Strides(
        told.get("stride", ones), told.get("padding", (0,) * axes), told.get("dilation", ones)
    )
    return how if all(len(one) == axes for one in how) else None


def _fits(x: tuple[int, ...], w: tuple[int, ...], own: tuple[int, ...], how: Strides) -> bool:
    """Whether these shapes are those of one convolution."""
    if len(x) != len(w) or len(own) != len(w) or x[:2] != (own[0], w[1]) or own[1] != w[0]:
        return False
    return own[2:] == tuple(
        (n + 2 * pad - step * (k - 1) - 1) // stride + 1
        for n, k, stride, pad, step in zip(x[2:], w[2:], *how, strict=True)
    )
