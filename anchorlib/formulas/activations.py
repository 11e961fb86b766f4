"""Activations and their gradients: g is the gradient of the output, y the output, x the input.

The formulas are those of torch's eager kernels (ATen/native/cpu), of torch's decompositions, which
compilers use (torch/_decomp/decompositions.py), and those that people write by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from anchorlib.formulas.elementary import Library
from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel
from anchorlib.formulas.rounded import Rounded, fma

__all__ = ["ACTIVATIONS"]

_CUBIC: Final = 0.044715
_TANH_SCALE: Final = math.sqrt(2 / math.pi)
_HALF_ROOT: Final = math.sqrt(0.5)
_DENSITY: Final = 1 / math.sqrt(2 * math.pi)


def _kernel(name: str, **options: Any) -> tuple[Kernel, ...]:
    def compute(inputs: Sequence[Any], precision: str) -> Any:
        return kernel(name, inputs, precision, **options)

    return (Kernel("torch's kernel", compute),)


def _sigmoid(lib: Library, x: Rounded) -> Rounded:
    return 1 / (1 + lib.exp(-x))


def _tanh_argument(x: Rounded) -> Rounded:
    return _TANH_SCALE * (x + _CUBIC * (x * x * x))


def _gelu_tanh_slope(lib: Library, g: Rounded, x: Rounded) -> Rounded:
    square = x * x
    inner = _TANH_SCALE * (x + _CUBIC * (square * x))
    t = lib.tanh(inner)
    left, right = 0.5 * x, 1 + t
    slope = _TANH_SCALE * (1 + (3 * _CUBIC) * square)
    return g * (0.5 * right + left * ((1 - t * t) * slope))


def _silu_slope(lib: Library, g: Rounded, x: Rounded) -> Rounded:
    s = lib.sigmoid(x)
    return g * s * (1 + x * (1 - s))


def _silu_slope_expanded(lib: Library, g: Rounded, x: Rounded) -> Rounded:
    s = lib.sigmoid(x)
    return g * (s + x * (s * (1 - s)))


def _silu_slope_of_product(lib: Library, g: Rounded, x: Rounded) -> Rounded:
    s = lib.sigmoid(x)
    return g * s + (g * x) * (s * (1 - s))


def _gelu_slope(lib: Library, g: Rounded, x: Rounded) -> Rounded:
    below = 0.5 * (1 + lib.erf(x * _HALF_ROOT))
    density = lib.exp(x * x * -0.5) * _DENSITY
    return g * (below + x * density)


ACTIVATIONS: Final[dict[str, Function]] = {
    one.name: one
    for one in (
        Function(
            "tanh",
            (
                Formula("tanh(x)", lambda lib, x: lib.tanh(x), elementary=True),
                Formula(
                    "2/(1 + exp(-2x)) - 1",
                    lambda lib, x: 2 / (1 + lib.exp(-2 * x)) - 1,
                    elementary=True,
                ),
                Formula("2*sigmoid(2x) - 1", lambda lib, x: 2 * _sigmoid(lib, 2 * x) - 1, True),
            ),
            _kernel("tanh"),
        ),
        Function(
            "tanh_backward",
            (
                Formula("g*(1 - y*y)", lambda _, g, y: g * (1 - y * y)),
                Formula("g*fma(-y, y, 1)", lambda _, g, y: g * fma(-y, y, 1.0)),
                Formula("fma(-g, y*y, g)", lambda _, g, y: fma(-g, y * y, g)),
                Formula("fma(-(g*y), y, g)", lambda _, g, y: fma(-(g * y), y, g)),
                Formula("g - g*(y*y)", lambda _, g, y: g - g * (y * y)),
                Formula("g - (g*y)*y", lambda _, g, y: g - (g * y) * y),
                Formula("g*((1 - y)*(1 + y))", lambda _, g, y: g * ((1 - y) * (1 + y))),
            ),
            _kernel("tanh_backward"),
        ),
        Function(
            "sigmoid",
            (
                Formula("1/(1 + exp(-x))", _sigmoid, elementary=True),
                Formula(
                    "exp(x)/(1 + exp(x))",
                    lambda lib, x: lib.exp(x) / (1 + lib.exp(x)),
                    elementary=True,
                ),
                Formula("(1 + tanh(x/2))/2", lambda lib, x: 0.5 * (1 + lib.tanh(0.5 * x)), True),
            ),
            _kernel("sigmoid"),
        ),
        Function(
            "sigmoid_backward",
            (
                Formula("g*((1 - y)*y)", lambda _, g, y: g * ((1 - y) * y)),
                Formula("(g*(1 - y))*y", lambda _, g, y: (g * (1 - y)) * y),
                Formula("(g*y)*(1 - y)", lambda _, g, y: (g * y) * (1 - y)),
                Formula("g*fma(-y, y, y)", lambda _, g, y: g * fma(-y, y, y)),
                Formula("g*(y - y*y)", lambda _, g, y: g * (y - y * y)),
            ),
            _kernel("sigmoid_backward"),
        ),
        Function(
            "silu",
            (
                Formula("x/(1 + exp(-x))", lambda lib, x: x / (1 + lib.exp(-x)), elementary=True),
                Formula("x*sigmoid(x)", lambda lib, x: x * lib.sigmoid(x), elementary=True),
                Formula(
                    "x*(1/(1 + exp(-x)))", lambda lib, x: x * _sigmoid(lib, x), elementary=True
                ),
            ),
            _kernel("silu"),
        ),
        Function(
            "silu_backward",
            (
                Formula("(g*s)*(1 + x*(1 - s))", _silu_slope, elementary=True),
                Formula(
                    "g*(s*(1 + x*(1 - s)))",
                    lambda lib, g, x: g * (lib.sigmoid(x) * (1 + x * (1 - lib.sigmoid(x)))),
                    elementary=True,
                ),
                Formula("g*(s + x*(s*(1 - s)))", _silu_slope_expanded, elementary=True),
                Formula("g*s + (g*x)*(s*(1 - s))", _silu_slope_of_product, elementary=True),
            ),
            _kernel("silu_backward"),
        ),
        Function(
            "gelu",
            (
                Formula(
                    "x*0.5*(1 + erf(x*sqrt(0.5)))",
                    lambda lib, x: (x * 0.5) * (1 + lib.erf(x * _HALF_ROOT)),
                    elementary=True,
                ),
                Formula(
                    "x*(0.5*(1 + erf(x*sqrt(0.5))))",
                    lambda lib, x: x * (0.5 * (1 + lib.erf(x * _HALF_ROOT))),
                    elementary=True,
                ),
            ),
            _kernel("gelu"),
        ),
        Function(
            "gelu(approximate='tanh')",
            (
                Formula(
                    "(0.5*x)*(1 + tanh(k*(x + 0.044715*x³)))",
                    lambda lib, x: (0.5 * x) * (1 + lib.tanh(_tanh_argument(x))),
                    elementary=True,
                ),
                Formula(
                    "x*(0.5*(1 + tanh(k*(x + 0.044715*x³))))",
                    lambda lib, x: x * (0.5 * (1 + lib.tanh(_tanh_argument(x)))),
                    elementary=True,
                ),
            ),
            _kernel("gelu", approximate="tanh"),
        ),
        Function(
            "gelu_backward",
            (Formula("g*(cdf(x) + x*pdf(x))", _gelu_slope, elementary=True),),
            _kernel("gelu_backward"),
        ),
        Function(
            "gelu_backward(approximate='tanh')",
            (Formula("g*(0.5*(1 + t) + 0.5*x*(1 - t*t)*k')", _gelu_tanh_slope, elementary=True),),
            _kernel("gelu_backward", approximate="tanh"),
        ),
    )
}
"""The functions by name. Inputs of `*_backward` are g and the tensor that the forward saved."""
