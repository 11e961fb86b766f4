"""Softmax, layer norm and RMS norm over the last axis, and their gradients.

g is the gradient of the output, y the output, x the input, w a weight and b a bias. The order of a
sum is part of a formula: numpy's pairwise order, one term after another, in float64, or torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anchorlib.formulas.elementary import Library
from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel, kernel_outputs
from anchorlib.formulas.rounded import EXACT, Rounded

__all__ = ["layer_norm", "layer_norm_backward", "rms_norm", "softmax", "softmax_backward"]

Array = np.ndarray[Any, Any]
Order = tuple[str, Callable[[Rounded], Rounded]]


def _wide_sum(x: Rounded) -> Rounded:
    return x.of(x.values.astype(np.float64).sum(-1, keepdims=True))


def _torch_sum(x: Rounded) -> Rounded:
    if x.precision == EXACT:
        return x.sum()
    return x.of(kernel("sum", [x.values, [-1], True], x.precision))


ORDERS: tuple[Order, ...] = (
    ("pairwise sum", lambda x: x.sum()),
    ("sequential sum", lambda x: x.sum(order="sequential")),
    ("sum in float64", _wide_sum),
    ("torch's sum", _torch_sum),
)


def _kernel(name: str, arguments: Callable[[Sequence[Array]], list[Any]]) -> tuple[Kernel, ...]:
    def compute(inputs: Sequence[Array], precision: str) -> Array:
        return kernel(name, arguments(inputs), precision)

    return (Kernel("torch's kernel", compute),)


def softmax() -> Function:
    """Return the `Function` exp(x - max) / sum over the last axis; its input: x."""

    def form(total: Callable[[Rounded], Rounded]) -> Callable[[Library, Rounded], Rounded]:
        def compute(lib: Library, x: Rounded) -> Rounded:
            e = lib.exp(x - x.map(lambda one: one.max(-1, keepdims=True)))
            return e / total(e)

        return compute

    def by_inverse(lib: Library, x: Rounded) -> Rounded:
        e = lib.exp(x - x.map(lambda one: one.max(-1, keepdims=True)))
        return e * (1 / e.sum())

    forms = [Formula(f"exp(x - max)/sum, {name}", form(total), True) for name, total in ORDERS]
    forms.append(Formula("exp(x - max)*(1/sum), pairwise sum", by_inverse, elementary=True))
    return Function(
        "softmax", tuple(forms), _kernel("_softmax", lambda inputs: [*inputs, -1, False])
    )


def softmax_backward() -> Function:
    """Return the `Function` y*(g - sum(g*y)): the gradient of a softmax's input.

    Its inputs: g, the gradient of the output, and y, the output.
    """
    forms = []
    for name, total in ORDERS:
        forms += [
            Formula(f"y*(g - sum(g*y)), {name}", _bind(_softmax_slope, total)),
            Formula(f"g*y - y*sum(g*y), {name}", _bind(_softmax_slope_expanded, total)),
        ]
    library = Kernel("torch's kernel", _softmax_kernel)
    return Function("softmax_backward", tuple(forms), (library,))


def _softmax_kernel(inputs: Sequence[Array], precision: str) -> Array:
    g, y = inputs
    return kernel("_softmax_backward_data", [g, y, -1], precision, input_dtype=precision)


def _softmax_slope(total: Callable[[Rounded], Rounded], g: Rounded, y: Rounded) -> Rounded:
    return y * (g - total(g * y))


def _softmax_slope_expanded(total: Callable[[Rounded], Rounded], g: Rounded, y: Rounded) -> Rounded:
    product = g * y
    return product - y * total(product)


def _bind(
    function: Callable[..., Rounded], total: Callable[[Rounded], Rounded]
) -> Callable[..., Rounded]:
    return lambda _, *inputs: function(total, *inputs)


def _scaled(x: Rounded, parameters: Sequence[Rounded]) -> Rounded:
    """Return x times the weight plus the bias, as far as there are a weight and a bias.

    parameters: [], [weight] or [weight, bias].
    """
    scaled = x * parameters[0] if parameters else x
    return scaled + parameters[1] if len(parameters) > 1 else scaled


def layer_norm(eps: float) -> Function:
    """Return the `Function` (x - mean)/sqrt(var + eps)*w + b over the last axis.

    The inputs of the `Function`: x, or x and w, or x, w and b.
    """

    def arguments(inputs: Sequence[Array]) -> list[Any]:
        x, *parameters = inputs
        padded = [*parameters, None, None][:2]
        return [x, [x.shape[-1]], *padded, eps]

    return Function(
        f"layer_norm(eps={eps:g})",
        _forms("(x - mean)/sqrt(var + eps)*w + b", "(x - mean)*(1/sqrt(var + eps))*w + b", eps),
        _kernel("native_layer_norm", arguments),
    )


def rms_norm(eps: float) -> Function:
    """Return the `Function` x/sqrt(mean(x*x) + eps)*w over the last axis.

    Its inputs: x, then w where there is a weight.
    """

    def arguments(inputs: Sequence[Array]) -> list[Any]:
        x, *parameters = inputs
        return [x, [x.shape[-1]], parameters[0] if parameters else None, eps]

    root, inverse = "x/sqrt(mean(x*x) + eps)*w", "x*(1/sqrt(mean(x*x) + eps))*w"
    return Function(
        f"rms_norm(eps={eps:g})",
        _forms(root, inverse, eps, centred=False),
        _kernel("rms_norm", arguments),
    )


def _forms(root: str, inverse: str, eps: float, *, centred: bool = True) -> tuple[Formula, ...]:
    """Return the formulas of a normalisation in each order of sums, and one in float64.

    root: the name of the formula that divides by the root of the variance (or mean square) + eps.
    inverse: the name of the formula that multiplies by the inverse of that root.
    centred: whether the mean is subtracted first, as layer norm does and RMS norm does not.
    """

    def form(total: Callable[[Rounded], Rounded], *, divides: bool) -> Callable[..., Rounded]:
        def compute(lib: Library, x: Rounded, *parameters: Rounded) -> Rounded:
            count = float(x.values.shape[-1])
            centre = x - total(x) / count if centred else x
            spread = total(centre * centre) / count + eps
            normal = centre / lib.sqrt(spread) if divides else centre * lib.rsqrt(spread)
            return _scaled(normal, parameters)

        return compute

    forms = []
    for name, total in ORDERS:
        forms += [
            Formula(f"{root}, {name}", form(total, divides=True), elementary=True),
            Formula(f"{inverse}, {name}", form(total, divides=False), elementary=True),
        ]
    forms.append(Formula("in float64, rounded once", _once(form(ORDERS[0][1], divides=True))))
    return tuple(forms)


def _once(compute: Callable[..., Rounded]) -> Callable[..., Rounded]:
    """Return `compute` made to work in float64 (wider for float64 inputs) and to round once."""

    def rounded(lib: Library, *inputs: Rounded) -> Rounded:
        wide = EXACT if inputs[0].precision in ("float64", EXACT) else "float64"
        result = compute(lib, *(Rounded(one.values, wide) for one in inputs))
        return inputs[0].of(result.values)

    return rounded


def layer_norm_backward(eps: float) -> Function:
    """Return the `Function` that gives the gradient of a layer norm's input x.

    Its inputs: g, the gradient of the output; x; then w where there is a weight.
    """

    def form(total: Callable[[Rounded], Rounded]) -> Callable[..., Rounded]:
        def compute(lib: Library, g: Rounded, x: Rounded, *parameters: Rounded) -> Rounded:
            count = float(x.values.shape[-1])
            centred = x - total(x) / count
            inverse = lib.rsqrt(total(centred * centred) / count + eps)
            normal = centred * inverse
            own = g * parameters[0] if parameters else g
            rest = own * count - total(own) - normal * total(own * normal)
            return (inverse / count) * rest

        return compute

    forms = [Formula(f"rstd/n*(n*gw - sum gw - n̂*sum gw*n̂), {n}", form(t), True) for n, t in ORDERS]
    forms.append(Formula("in float64, rounded once", _once(form(ORDERS[0][1]))))

    def library(inputs: Sequence[Array], precision: str) -> Array:
        g, x, *parameters = inputs
        size, weight = [x.shape[-1]], parameters[0] if parameters else None
        # The backward takes mean and rstd, which no record holds: torch computes them again.
        forward = [x, size, weight, None, eps]
        _, mean, rstd = kernel_outputs("native_layer_norm", forward, precision)
        whole = [g, x, size, mean, rstd, weight, None, [True, False, False]]
        return kernel("native_layer_norm_backward", whole, precision)

    return Function(
        f"layer_norm_backward(eps={eps:g})",
        tuple(forms),
        (Kernel("torch's kernel", library),),
    )
