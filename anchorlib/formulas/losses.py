"""Losses and their gradients: mean squared error, log-softmax, cross entropy.

g is the gradient of the output, x the input, t the target, n the number of terms of a mean. The
order of a sum is part of a formula. A library adds up a whole loss in an order of its own, which no
formula here has: which formula made a loss mostly stays unknown, but its error is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anchorlib.formulas.elementary import Library
from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel
from anchorlib.formulas.normalisations import ORDERS
from anchorlib.formulas.rounded import Rounded

__all__ = [
    "cross_entropy",
    "cross_entropy_backward",
    "log_softmax",
    "log_softmax_backward",
    "mse_loss",
    "mse_loss_backward",
]

Array = np.ndarray[Any, Any]
Sum = Callable[[Rounded], Rounded]


def mse_loss(reduction: str) -> Function:
    """Return the `Function` that gives the mean, or the sum, of (x - t)², as one element.

    The inputs of the `Function`: x and t, both flat.

    reduction: "mean" or "sum".
    """

    def form(total: Sum) -> Callable[..., Rounded]:
        def compute(_: Library, x: Rounded, t: Rounded) -> Rounded:
            squares = total((x - t) * (x - t))
            return squares / float(x.values.size) if reduction == "mean" else squares

        return compute

    forms = tuple(Formula(f"{reduction} of (x - t)², {name}", form(one)) for name, one in ORDERS)
    code = _code(reduction)
    return _function(f"mse_loss({reduction})", forms, lambda x, t: ("mse_loss", [x, t, code]))


def mse_loss_backward(reduction: str) -> Function:
    """Return the `Function` g·2·(x - t)/n, the gradient of the input x of `mse_loss`.

    n is the number of elements for the reduction "mean", and 1 for "sum". The inputs of the
    `Function`: g of one element, then x and t, both flat.

    reduction: "mean" or "sum".
    """

    def scale(x: Rounded) -> float:
        return float(x.values.size) if reduction == "mean" else 1.0

    def two(x: Rounded) -> Rounded:
        return x.of(2.0) / scale(x)

    forms = (
        Formula("(2/n)*(x - t)*g", lambda _, g, x, t: two(x) * (x - t) * g),
        Formula("(2/n*g)*(x - t)", lambda _, g, x, t: two(x) * g * (x - t)),
        Formula("(g/n)*(2*(x - t))", lambda _, g, x, t: (g / scale(x)) * (2 * (x - t))),
        Formula("g*(2*(x - t)/n)", lambda _, g, x, t: g * (2 * (x - t) / scale(x))),
    )
    name, code = f"mse_loss_backward({reduction})", _code(reduction)
    return _function(
        name, forms, lambda g, x, t: ("mse_loss_backward", [g.reshape(()), x, t, code])
    )


def log_softmax() -> Function:
    """Return the `Function` x - max - log(sum(exp(x - max))) over the last axis; its input: x."""

    def apart(total: Sum) -> Callable[[Library, Rounded], Rounded]:
        return lambda lib, x: _log_softmax(lib, x, total)

    def together(total: Sum) -> Callable[[Library, Rounded], Rounded]:
        def compute(lib: Library, x: Rounded) -> Rounded:
            most = _most(x)
            return x - (most + lib.log(total(lib.exp(x - most))))

        return compute

    forms = [
        Formula(f"{text}, {name}", make(one), elementary=True)
        for text, make in (("(x - max) - log(sum)", apart), ("x - (max + log(sum))", together))
        for name, one in ORDERS
    ]
    return _function("log_softmax", forms, lambda x: ("_log_softmax", [x, -1, False]))


def log_softmax_backward() -> Function:
    """Return the `Function` g - exp(y)·sum(g): the gradient of a log-softmax's input.

    Its inputs: g, the gradient of the output, and y, the output.
    """

    def form(total: Sum) -> Callable[[Library, Rounded, Rounded], Rounded]:
        return lambda lib, g, y: g - lib.exp(y) * total(g)

    forms = [Formula(f"g - exp(y)*sum(g), {name}", form(one), True) for name, one in ORDERS]

    def compute(inputs: Sequence[Array], precision: str) -> Array:
        return kernel("_log_softmax_backward_data", [*inputs, -1], precision, input_dtype=precision)

    return Function("log_softmax_backward", tuple(forms), (Kernel("torch's kernel", compute),))


def cross_entropy() -> Function:
    """Return the `Function` that gives the mean of -log_softmax(x) at the target, as one element.

    The inputs of the `Function`: x and t, both (n, classes). A row of t has a 1 at the target's
    class and 0 elsewhere.
    """

    def form(total: Sum) -> Callable[[Library, Rounded, Rounded], Rounded]:
        def compute(lib: Library, x: Rounded, t: Rounded) -> Rounded:
            # The sum is exact: all terms but one are zero.
            taken = (_log_softmax(lib, x, total) * t).values.sum(-1)
            return -(total(x.of(taken)) / float(t.values.sum()))

        return compute

    forms = [Formula(f"mean of -log_softmax, {name}", form(one), True) for name, one in ORDERS]
    return _function(
        "cross_entropy", forms, lambda x, t: ("cross_entropy_loss", [x, t.astype(x.dtype)])
    )


def cross_entropy_backward() -> Function:
    """Return the `Function` (softmax(x) - t)·g/n: the gradient of a cross entropy's input x.

    The inputs of the `Function`: g of one element, then x and t, both (n, classes). A row of t has
    a 1 at the target's class and 0 elsewhere.
    """

    def by_logarithm(total: Sum) -> Callable[..., Rounded]:
        def compute(lib: Library, g: Rounded, x: Rounded, t: Rounded) -> Rounded:
            each = -(g / float(t.values.sum())) * t
            # The sum is exact: all terms but one are zero.
            sums = each.of(each.values.sum(-1, keepdims=True))
            return each - lib.exp(_log_softmax(lib, x, total)) * sums

        return compute

    def directly(total: Sum) -> Callable[..., Rounded]:
        def compute(lib: Library, g: Rounded, x: Rounded, t: Rounded) -> Rounded:
            e = lib.exp(x - _most(x))
            return (e / total(e) - t) * (g / float(t.values.sum()))

        return compute

    forms = [
        Formula(f"{text}, {name}", make(one), elementary=True)
        for text, make in (
            ("exp(log_softmax(x))*(g/n) - t*(g/n)", by_logarithm),
            ("(softmax(x) - t)*(g/n)", directly),
        )
        for name, one in ORDERS
    ]
    return Function(
        "cross_entropy_backward", tuple(forms), (Kernel("torch's kernels", _entropy_kernels),)
    )


def _entropy_kernels(inputs: Sequence[Array], precision: str) -> Array:
    g, x, t = inputs
    log_probabilities = kernel("_log_softmax", [x, -1, False], precision)
    per_row = kernel("div", [g.reshape(()), float(t.sum())], precision)
    grad = np.where(t > 0, -per_row, np.zeros_like(log_probabilities))
    return kernel(
        "_log_softmax_backward_data",
        [grad, log_probabilities, -1],
        precision,
        input_dtype=precision,
    )


def _most(x: Rounded) -> Rounded:
    return x.map(lambda one: one.max(-1, keepdims=True))


def _log_softmax(lib: Library, x: Rounded, total: Sum) -> Rounded:
    low = x - _most(x)
    return low - lib.log(total(lib.exp(low)))


def _code(reduction: str) -> int:
    """Return the number that torch's kernels have for a reduction: 1 for "mean", 2 for "sum"."""
    return {"mean": 1, "sum": 2}[reduction]


def _function(
    name: str, forms: Sequence[Formula], call: Callable[..., tuple[str, list[Any]]]
) -> Function:
    def compute(inputs: Sequence[Array], precision: str) -> Array:
        output = kernel(*call(*inputs), precision)
        return output.reshape(1) if output.ndim == 0 else output

    return Function(name, tuple(forms), (Kernel("torch's kernel", compute),))
