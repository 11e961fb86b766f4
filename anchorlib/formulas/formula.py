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

    name: the formula as people write it, such as "g*(1 - y*y)".
    compute: (library, *inputs) -> output. The library supplies exp, tanh and the like.
    elementary: whether `compute` calls functions of the library, which libraries round differently;
        then the formula is tried with each library.
    """

    name: str
    compute: Callable[..., Rounded]
    elementary: bool = False


class Kernel(NamedTuple):
    """torch's own kernel for a function.

    name: for people, such as "torch's kernel".
    compute: (inputs, precision) -> output. The kernel computes in the element type `precision`.
    """

    name: str
    compute: Callable[[Sequence[Array], str], Array]


class Function(NamedTuple):
    """A mathematical function and the ways to compute it.

    name: the function and its settings, such as "gelu(approximate='tanh')".
    formulas: formulas that are equal in real numbers and round differently. The first one, computed
        in the widest arithmetic, is taken for the true value.
    kernels: torch's own kernels, which are tried after the formulas.
    """

    name: str
    formulas: tuple[Formula, ...]
    kernels: tuple[Kernel, ...] = ()
