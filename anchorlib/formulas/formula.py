"""A mathematical function, the formulas that compute it, and torch's kernels for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib.formulas.rounded import Rounded

__all__ = ["Formula", "Function", "Kernel"]

Array = np.ndarray[Any, Any]


class Formula(NamedTuple):
    """One way to compute a function, which rounds after each of its operations.

    name: the formula as people write it, "g*(1 - y*y)".
    compute: (library, *inputs) -> output.
    elementary: whether it calls exp, tanh or the like, which libraries round differently; then the
        formula is tried with each library.
    """

    name: str
    compute: Callable[..., Rounded]
    elementary: bool = False


class Kernel(NamedTuple):
    """torch's own kernel for a function. compute: (inputs, precision) -> values."""

    name: str
    compute: Callable[[Sequence[Array], str], Array]


class Function(NamedTuple):
    """A mathematical function and the ways to compute it.

    name: as "gelu(approximate='tanh')".
    formulas: the first, evaluated in the widest arithmetic, is taken for the true value.
    kernels: torch's own kernels, which are tried too.
    """

    name: str
    formulas: tuple[Formula, ...]
    kernels: tuple[Kernel, ...] = ()
