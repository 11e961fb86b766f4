"""exp, log, tanh, erf, sigmoid and roots, which libraries round differently in the last bit.

A formula that calls such a function is tried with each library. If the bits agree with one library
alone, the run called that library; if they agree with none, the run may have called yet another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.formulas.kernels import kernel
from anchorlib.formulas.rounded import EXACT, Rounded, erf

__all__ = ["LIBRARIES", "Library"]

Array = np.ndarray[Any, Any]
Map = Callable[[Rounded], Rounded]


class Library(NamedTuple):
    """The elementary functions of one library, under torch's names.

    name: the library's name, which becomes part of a formula's name in an answer.
    """

    name: str
    exp: Map
    tanh: Map
    erf: Map
    sigmoid: Map
    sqrt: Map
    rsqrt: Map
    log: Map


def _correct(function: Callable[[Array], Array]) -> Map:
    """Return `function` made to compute in float64 and to round once to the input's precision.

    For float32 and 16-bit types the result is correctly rounded, but for rare values close to a
    tie. For float64 it is numpy's own result. `EXACT` is computed in its own, wider type.
    """

    def rounded(x: Rounded) -> Rounded:
        wide = x.values if x.precision == EXACT else x.values.astype(np.float64)
        return x.of(function(wide))

    return rounded


def _sigmoid(x: Array) -> Array:
    values: Array = 1 / (1 + np.exp(-x))
    return values


def _rsqrt(x: Array) -> Array:
    values: Array = 1 / np.sqrt(x)
    return values


def _torch(name: str) -> Map:
    """Return torch's function `name`, such as "exp", computed in the element type of its input."""

    def computed(x: Rounded) -> Rounded:
        return x.of(kernel(name, [x.values], x.precision))

    return computed


CORRECT: Final = Library(
    "correctly rounded",
    exp=_correct(np.exp),
    tanh=_correct(np.tanh),
    erf=_correct(erf),
    sigmoid=_correct(_sigmoid),
    sqrt=_correct(np.sqrt),
    rsqrt=_correct(_rsqrt),
    log=_correct(np.log),
)
TORCH: Final = Library("torch's", *(_torch(name) for name in Library._fields[1:]))

LIBRARIES: Final = (CORRECT, TORCH)
"""The libraries that formulas are tried with; the first also computes the true values."""
