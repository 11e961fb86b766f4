"""What was computed is named by its formula, and errors are those of exact arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch.nn import functional

from anchorlib.formulas import (
    ACTIVATIONS,
    Fit,
    Function,
    ProductPart,
    fit,
    layer_norm,
    layer_norm_backward,
    product,
    rms_norm,
    softmax,
    softmax_backward,
)

ROWS, SIZE = 64, 96
Tensor = torch.Tensor
PRECISIONS = ["float32", "float64", "bfloat16"]


def values(tensor: Tensor) -> np.ndarray[Any, Any]:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.detach().to(wide).numpy()


def random(number: int, precision: str, *, rows: int = ROWS) -> list[Tensor]:
    made = torch.Generator().manual_seed(number)
    return [torch.randn(rows, SIZE, generator=made).to(getattr(torch, precision)) for _ in "gx"]


def told(functions: Sequence[Function], inputs: Sequence[Tensor], output: Tensor) -> Fit:
    name = str(output.dtype).removeprefix("torch.")
    return fit(functions, [values(one) for one in inputs], values(output), name)


def gradient(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    function(leaf).backward(g)
    assert leaf.grad is not None
    return leaf.grad


FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu(approximate='tanh')": lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FORWARD)
def test_torchs_own_activations_and_their_gradients_are_reproduced(
    name: str, precision: str
) -> None:
    g, x = random(0, precision)
    y = FORWARD[name](x)
    assert "torch's kernel" in told([ACTIVATIONS[name]], [x], y).formulas
    base, _, option = name.partition("(")
    slope = ACTIVATIONS[f"{base}_backward" + (f"({option}" if option else "")]
    saved = y if base in ("tanh", "sigmoid") else x
    assert "torch's kernel" in told([slope], [g, saved], gradient(FORWARD[name], x, g)).formulas


@pytest.mark.parametrize("precision", PRECISIONS)
def test_torchs_own_norms_and_softmax_are_reproduced(precision: str) -> None:
    g, x = random(1, precision)
    w, b = random(2, precision, rows=1)
    w, b = w[0], b[0]

    def norm(one: Tensor) -> Tensor:
        return functional.layer_norm(one, (SIZE,), w, b)

    kernel = "torch's kernel"
    assert kernel in told([layer_norm(1e-5)], [x, w, b], norm(x)).formulas
    assert kernel in told([layer_norm_backward(1e-5)], [g, x, w], gradient(norm, x, g)).formulas
    assert kernel in told([softmax()], [x], x.softmax(-1)).formulas
    slope = gradient(lambda one: one.softmax(-1), x, g)
    assert kernel in told([softmax_backward()], [g, x.softmax(-1)], slope).formulas
    rms = functional.rms_norm(x, (SIZE,), w, 1e-6)
    assert kernel in told([rms_norm(1e-6)], [x, w], rms).formulas


BY_HAND: dict[str, dict[str, Callable[..., Tensor]]] = {
    "tanh_backward": {
        "g*(1 - y*y)": lambda g, y: g * (1 - y * y),
        "g - g*(y*y)": lambda g, y: g - g * (y * y),
        "g*((1 - y)*(1 + y))": lambda g, y: g * ((1 - y) * (1 + y)),
        "g*fma(-y, y, 1)": torch.ops.aten.tanh_backward,
    },
    "sigmoid_backward": {
        "g*((1 - y)*y)": lambda g, y: g * ((1 - y) * y),
        "(g*y)*(1 - y)": lambda g, y: (g * y) * (1 - y),
        "(g*(1 - y))*y": torch.ops.aten.sigmoid_backward,
    },
    "silu": {
        "x*sigmoid(x) (torch's functions)": lambda x: x * torch.sigmoid(x),
        "x/(1 + exp(-x)) (torch's functions)": lambda x: x / (1 + torch.exp(-x)),
    },
}


def written(formulas: Iterable[str]) -> set[str]:
    """The formulas without whose functions they are: some processors round all of torch's right."""
    whose = re.compile(r" \((torch's|correctly rounded) functions\)$")
    return {whose.sub("", one) for one in formulas}


@pytest.mark.parametrize(
    ("function", "name"), [(one, name) for one, names in BY_HAND.items() for name in names]
)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_code_written_by_hand_is_named_by_its_formula_and_nothing_else_is(
    function: str, name: str, precision: str
) -> None:
    g, x = random(3, precision)
    inputs = [x] if function == "silu" else [g, torch.sigmoid(x)]
    found = told([ACTIVATIONS[function]], inputs, BY_HAND[function][name](*inputs))
    assert name in found.formulas
    assert written(found.formulas) - {"torch's kernel"} == written([name])


def test_bfloat16_code_that_rounds_at_each_step_is_told_from_a_kernel_that_rounds_once() -> None:
    g, y = random(4, "bfloat16")
    steps = told([ACTIVATIONS["tanh_backward"]], [g, y.tanh()], g * (1 - y.tanh() * y.tanh()))
    once = told(
        [ACTIVATIONS["tanh_backward"]], [g, y.tanh()], torch.ops.aten.tanh_backward(g, y.tanh())
    )
    assert steps.formulas == ("g*(1 - y*y), each step in bfloat16",)
    assert "g*(1 - y*y), in float32" in once.formulas
    assert once.error < steps.error


def test_a_layer_norm_by_hand_is_told_from_torchs() -> None:
    _, x = random(5, "float32")
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    found = told([layer_norm(1e-5)], [x], (x - mean) / (variance + 1e-5).sqrt())
    by_hand = "(x - mean)/sqrt(var + eps)*w + b, torch's sum (torch's functions)"
    assert by_hand in found.formulas
    assert written(found.formulas) == written([by_hand])


def test_of_two_functions_the_one_that_was_computed_is_told() -> None:
    _, x = random(6, "float32")
    both = [ACTIVATIONS["gelu"], ACTIVATIONS["gelu(approximate='tanh')"]]
    assert told(both, [x], functional.gelu(x)).function == "gelu"
    found = told(both, [x], functional.gelu(x, approximate="tanh"))
    assert found.function == "gelu(approximate='tanh')"
    norms = [layer_norm(one) for one in (1e-5, 1e-2)]
    other = functional.layer_norm(x, (SIZE,), eps=1e-2)
    assert told(norms, [x], other).function == "layer_norm(eps=0.01)"


@pytest.mark.parametrize("order", ["sequential", "fma", "pairwise", "4 sums, fma"])
def test_the_order_in_which_a_product_was_added_up_is_named(order: str) -> None:
    a, b = random(7, "float32")
    part = ProductPart(np.arange(0, ROWS, 4), np.arange(SIZE // 2))
    function = product(part)
    right = b[: SIZE // 2].T
    whole = ProductPart(np.arange(ROWS), np.arange(SIZE // 2))
    formula = next(one for one in product(whole).formulas if one.name == order)
    from anchorlib.formulas.rounded import Rounded

    inputs = [values(a), values(right)]
    output = formula.compute(None, *(Rounded(one, "float32") for one in inputs)).values
    found = fit([function], inputs, output, "float32", part=part.of)
    assert order in found.formulas
    assert {"sequential", "pairwise", "4 sums, fma"} & set(found.formulas) <= {order}


def test_a_product_of_a_transposed_matrix_is_reproduced_by_torchs_kernel() -> None:
    a, b = random(8, "float32")
    weight, bias = b[:8], b[8][:8]
    part = ProductPart(np.arange(ROWS), np.arange(8))
    output = functional.linear(a, weight, bias)
    inputs = [values(a), values(weight).T, values(bias)]
    found = fit([product(part)], inputs, values(output), "float32", part=part.of)
    assert "torch's kernel" in found.formulas


@pytest.mark.slow
@pytest.mark.parametrize("function", ["tanh_backward", "sigmoid_backward"])
def test_errors_are_those_that_exact_arithmetic_finds(function: str) -> None:
    g, x = random(9, "float32")
    y = torch.tanh(x) if function == "tanh_backward" else torch.sigmoid(x)
    exact = {
        "tanh_backward": lambda a, b: a * (1 - b * b),
        "sigmoid_backward": lambda a, b: a * (1 - b) * b,
    }[function]
    pairs = list(zip(g.flatten().tolist(), y.flatten().tolist(), strict=True))
    with mpmath.workdps(60):
        truth = [exact(mpmath.mpf(one), mpmath.mpf(two)) for one, two in pairs]
        scale = mpmath.sqrt(mpmath.fsum(one * one for one in truth)) * mpmath.mpf(2) ** -23
        for compute in BY_HAND[function].values():
            output = compute(g, y)
            computed = map(mpmath.mpf, output.flatten().tolist())
            errors = [one - two for one, two in zip(computed, truth, strict=True)]
            error = float(mpmath.sqrt(mpmath.fsum(one * one for one in errors)) / scale)
            found = told([ACTIVATIONS[function]], [g, y], output)
            assert found.error == pytest.approx(error, rel=1e-6)


def test_an_output_that_no_formula_makes_is_nobodys_and_the_nearest_is_named() -> None:
    g, y = random(10, "float32")
    output = torch.ops.aten.tanh_backward(g, y.tanh())
    output[::2] = torch.nextafter(output[::2], torch.tensor(torch.inf))
    found = told([ACTIVATIONS["tanh_backward"]], [g, y.tanh()], output)
    assert found.formulas == ()
    assert found.nearest == "g*fma(-y, y, 1)"
    assert found.share == 0.5
