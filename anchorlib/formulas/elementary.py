"""exp, log, tanh, erf, sigmoid and roots, which libraries round differently in the last bit.

A formula that holds one of them is tried with each library, and the library is named: what agrees
with one alone says which one a run called, and what agrees with none may call another still.
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
    """One library's elementary functions. name: for people; the others are torch's names."""

    name: str
    exp: Map
    tanh: Map
    erf: Map
    sigmoid: Map
    sqrt: Map
    rsqrt: Map
    log: Map


def _correct(function: Callable[[Array], Array]) -> Map:
    """Computed in float64 or wider and rounded once: all but always the nearest number."""

    def rounded(x: Rounded) -> Rounded:
        wide = x.values if x.precision == EXACT else x.values.astype(np.float64)
        return x.of(function(wide))

    return rounded


def _sigmoid(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-x))
    return found


def _rsqrt(x: Array) -> Array:
    found: Array = 1 / np.sqrt(x)
    return found


def _torch(name: str) -> Map:
    """torch's function of values of that element type."""

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
"""Those that formulas are tried with. The first one also stands for the truth."""
