"""Matrix products, computed with the terms of each element added up in different orders.

    sequential   ((p1 + p2) + p3) + …, each product rounded before it is added
    fma          like sequential, but products are not rounded before they are added
    pairwise     the sum of one half plus the sum of the other half, and so on within the halves
    n sums, fma  n sums side by side, as vector units keep them, added up at the end

Only some rows and columns of a product are computed: its elements do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel
from anchorlib.formulas.rounded import Rounded, fma

__all__ = ["PRODUCTS", "Product", "ProductPart", "fused", "in_two", "product", "sequential"]

Array = np.ndarray[Any, Any]
Product = Callable[[Rounded, Rounded], Rounded]
_LANES: Final = (2, 4, 8, 16, 32)


class ProductPart(NamedTuple):
    """The rows and columns of a matrix product that are computed and compared, as indices."""

    rows: Array
    columns: Array

    def of(self, output: Array) -> Array:
        """Return the elements of a whole product that are in these rows and columns."""
        part: Array = output[np.ix_(self.rows, self.columns)]
        return part


def product(part: ProductPart) -> Function:
    """Return the `Function` a·b, or a·b + c, of which the rows and columns of `part` are computed.

    The inputs of the `Function`, as whole arrays: a (m, k), b (k, n) and, if it is added, c (n,).
    """

    def form(order: Callable[[Rounded, Rounded], Rounded]) -> Callable[..., Rounded]:
        def compute(_: Any, a: Rounded, b: Rounded, *c: Rounded) -> Rounded:
            left, right = a.of(a.values[part.rows]), b.of(b.values[:, part.columns])
            total = order(left, right)
            return total + c[0].of(c[0].values[part.columns]) if c else total

        return compute

    def started(_: Any, a: Rounded, b: Rounded, *c: Rounded) -> Rounded:
        left, right = a.of(a.values[part.rows]), b.of(b.values[:, part.columns])
        first = c[0].of(c[0].values[part.columns]) if c else None
        return _lanes(left, right, 1, first)

    def library(inputs: Sequence[Array], precision: str) -> Array:
        a, b, *c = inputs
        name = ("addmm", [c[0], a, b]) if c else ("mm", [a, b])
        return part.of(kernel(*name, precision))

    forms = [Formula(name, form(order)) for name, order in PRODUCTS]
    forms.append(Formula("fma, the bias first", started))
    return Function("mm", tuple(forms), (Kernel("torch's kernel", library),))


def sequential(a: Rounded, b: Rounded) -> Rounded:
    """Return a·b of matrices (…, m, k) and (…, k, n), with the terms added one after another.

    Each product of two elements is rounded before it is added.
    """
    total = _column(a, 0) * _row(b, 0)
    for at in range(1, a.values.shape[-1]):
        total = total + _column(a, at) * _row(b, at)
    return total


def fused(a: Rounded, b: Rounded) -> Rounded:
    """Return a·b of matrices (…, m, k) and (…, k, n), with each term added by fused multiply-add.

    Products of two elements are not rounded before they are added, except for the first one, which
    is added to 0.
    """
    return _lanes(a, b, 1)


def _pairwise(a: Rounded, b: Rounded) -> Rounded:
    def between(low: int, high: int) -> Rounded:
        if high - low == 1:
            return _column(a, low) * _row(b, low)
        middle = (low + high) // 2
        return between(low, middle) + between(middle, high)

    return between(0, a.values.shape[-1])


def _in_lanes(count: int) -> Product:
    return lambda a, b: _lanes(a, b, count)


def in_two(first: Product, outer: int) -> Product:
    """Return a function that computes a·b by groups of terms, and then adds up the groups' sums.

    first: computes the product within each group.
    outer: the number of groups, each of equally many consecutive terms.
    """

    def summed(a: Rounded, b: Rounded) -> Rounded:
        inner = a.values.shape[-1] // outer
        groups = [slice(at * inner, (at + 1) * inner) for at in range(outer)]
        sums = [first(a.of(a.values[..., one]), b.of(b.values[..., one, :])) for one in groups]
        return _added(sums)

    return summed


def _lanes(a: Rounded, b: Rounded, count: int, first: Rounded | None = None) -> Rounded:
    shape = (*a.values.shape[:-1], b.values.shape[-1])
    sums = [a.of(np.zeros(shape))] * min(count, a.values.shape[-1])
    if first is not None:
        sums[0] = first.of(np.broadcast_to(first.values, shape))
    for at in range(a.values.shape[-1]):
        lane = at % len(sums)
        sums[lane] = fma(_column(a, at), _row(b, at), sums[lane])
    return _added(sums)


def _added(sums: Sequence[Rounded]) -> Rounded:
    total = sums[0]
    for one in sums[1:]:
        total = total + one
    return total


def _column(a: Rounded, at: int) -> Rounded:
    return a.of(a.values[..., at : at + 1])


def _row(b: Rounded, at: int) -> Rounded:
    return b.of(b.values[..., at : at + 1, :])


PRODUCTS: Final[tuple[tuple[str, Product], ...]] = (
    ("sequential", sequential),
    ("fma", fused),
    ("pairwise", _pairwise),
    *((f"{n} sums, fma", _in_lanes(n)) for n in _LANES),
)
"""The orders in which products are tried, by name, for matrices (…, m, k) and (…, k, n)."""
