"""What a formula is, and a mathematical function that several formulas compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib.formulas.rounded import Rounded

__all__ = ["Formula", "Function", "Kernel"]

Array = np.ndarray[Any, Any]


class Formula(NamedTuple):
    """One way to compute a function, with each rounding where the way has one.

    name: as people write it, "g*(1 - y*y)".
    compute: (library, *inputs) -> output. elementary: whether it calls the library at all.
    """

    name: str
    compute: Callable[..., Rounded]
    elementary: bool = False


class Kernel(NamedTuple):
    """torch's kernel for a function. compute: (inputs, precision) -> values."""

    name: str
    compute: Callable[[Sequence[Array], str], Array]


class Function(NamedTuple):
    """A mathematical function and the ways to compute it.

    name: "gelu(approximate='tanh')". The first formula, computed exactly, is the truth.
    """

    name: str
    formulas: tuple[Formula, ...]
    kernels: tuple[Kernel, ...] = ()
