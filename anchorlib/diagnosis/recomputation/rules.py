"""The rules for a replay: for each operation its candidate functions and the operands they take.

A rule makes a recipe of operands: how a record is computed again. An operation is recognised by its
autograd nodes in one run; the other run may compute its result by other operations. Operands that
do not fit the rule give no recipe, so that nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.recomputation.attention import attending
from anchorlib.diagnosis.recomputation.convolutions import convolving
from anchorlib.diagnosis.recomputation.losses import (
    entropy,
    entropy_slope,
    logarithm,
    logarithm_slope,
    squares,
    squares_slope,
)
from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.diagnosis.recomputation.recipes import (
    ELEMENTS,
    LONGEST,
    SAMPLE,
    Recipe,
    alike,
    named,
    spread,
)
from anchorlib.diagnosis.recomputation.transposed import transposing
from anchorlib.formulas import (
    ACTIVATIONS,
    Function,
    ProductPart,
    layer_norm,
    layer_norm_backward,
    product,
    rms_norm,
    softmax,
    softmax_backward,
)

__all__ = ["Recipe", "recipe"]

Array = np.ndarray[Any, Any]
COMMON_EPS: Final = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)
_EPS: Final = re.compile(r"\beps=([0-9.e+-]+)")


def recipe(ops: Sequence[str], operands: Operands, texts: Sequence[str]) -> Recipe | None:
    """Return the recipe for computing the record `operands.own` again; None without a rule for it.

    None, too, where the operands do not fit the rule.
    ops: the autograd nodes that made the record, without those that only move bits.
    texts: the descriptions of the modules and the arguments of the operations of both runs, which
        state settings such as eps, strides and scale.
    """
    name = _single(ops)
    if name == "Convolution":
        return convolving(operands, texts) or transposing(operands, texts)
    if name in _ATTENTIONS:
        return attending(operands, texts)
    rule = _RULES.get((name, operands.own.kind == "value"))
    return None if rule is None else rule(operands, _eps(texts, operands.own.dtype))


def _single(ops: Sequence[str]) -> str:
    """Return the name of the one operation that these nodes make up; "" if they make up several.

    The name is an autograd node's without "Backward0", such as "Tanh", or stands for several nodes:
    "RmsNorm", "CrossEntropy" or "ScaledDotProductAttentionMath".
    """
    bases = [_node(one) for one in ops]
    if {"Rsqrt", "Mean", "Pow"} <= set(bases) <= {"Rsqrt", "Mean", "Pow", "Mul", "Add"}:
        return "RmsNorm"
    if set(bases) == {"LogSoftmax", "NllLoss"}:
        return "CrossEntropy"
    if set(bases) == {"Convolution", "ConstantPadNd"}:  # padding by `same`, one end more
        return "Convolution"
    if _PRODUCT in bases and _STEPS_OF_ATTENTION.issuperset(bases):
        return "ScaledDotProductAttentionMath"
    return bases[0] if len(bases) == 1 else ""


def _node(op: str) -> str:
    """Return the operation of an autograd node ("TanhBackward0") or traced op ("tanh_backward").

    Both of these examples give "Tanh".
    """
    if op[:1].isupper():
        return re.sub(r"Backward\d*$", "", op)
    words = re.sub(r"_backward(_data)?$", "", op).split("_")
    return "".join(word.capitalize() for word in words)


def _eps(texts: Sequence[str], precision: str) -> tuple[float, ...]:
    """Return the eps of norm layers to try: those stated, those in common use, the dtype's own.

    The eps of the dtype is the default of `torch.nn.RMSNorm`. texts: texts that may state an eps
    ("eps=1e-05"). precision: the dtype's name.
    """
    named = [float(number) for text in texts for number in _EPS.findall(text)]
    own = [kind.eps] if (kind := dtypes.dtype(precision)).eps else []
    return tuple(dict.fromkeys([*named, *COMMON_EPS, *own]))


def _flat(functions: Sequence[Function], operands: Sequence[StoredOperand]) -> Recipe:
    """Return the recipe for elementwise functions, which computes the first ELEMENTS elements."""

    def inputs(side: str) -> list[Array]:
        return [operand.read(side).reshape(-1)[:ELEMENTS] for operand in operands]

    return Recipe(tuple(functions), inputs, lambda own: own.reshape(-1)[:ELEMENTS])


def _rows(
    functions: Sequence[Function],
    operands: Sequence[StoredOperand],
    weights: Sequence[StoredOperand] = (),
) -> Recipe | None:
    """Return the recipe for functions along the last axis; it computes the first whole rows.

    These rows have about ELEMENTS elements in all. weights: parameters that all rows share. None
    where the first operand has no last axis, or a weight is not a vector as long as that axis.
    """
    size = operands[0].shape[-1] if operands[0].shape else 0
    if not size or any(weight.shape != (size,) for weight in weights):
        return None
    count = max(ELEMENTS // size, 1)

    def inputs(side: str) -> list[Array]:
        read = [operand.read(side).reshape(-1, size)[:count] for operand in operands]
        return [*read, *(weight.read(side) for weight in weights)]

    return Recipe(tuple(functions), inputs, lambda own: own.reshape(-1, size)[:count])


def _forward(*names: str) -> Callable[[Operands, Any], Recipe | None]:
    """Return the rule (a function that makes a recipe of operands) for an activation.

    names: the functions that the activation may be.
    """

    def rule(operands: Operands, _: Any) -> Recipe | None:
        x = alike(operands)
        return None if x is None else _flat([ACTIVATIONS[name] for name in names], [x])

    return rule


def _backward(*names: str, saved: str) -> Callable[[Operands, Any], Recipe | None]:
    """Return the rule (a function that makes a recipe of operands) for an activation's gradient.

    names: the candidate functions. saved: which value the backward reads, the activation's "output"
    or its "input".
    """

    def rule(operands: Operands, _: Any) -> Recipe | None:
        kept = operands.output if saved == "output" else named(operands, operands.own.name)
        if operands.child is None or kept is None:
            return None
        if not operands.child.shape == kept.shape == operands.own.shape:
            return None
        return _flat([ACTIVATIONS[name] for name in names], [operands.child, kept])

    return rule


def _softmax(operands: Operands, _: Any) -> Recipe | None:
    x = alike(operands)
    return None if x is None else _rows([softmax()], [x])


def _softmax_backward(operands: Operands, _: Any) -> Recipe | None:
    if (
        operands.child is None
        or operands.output is None
        or operands.child.shape != operands.output.shape
    ):
        return None
    return _rows([softmax_backward()], [operands.child, operands.output])


def _scale_and_shift(operands: Operands) -> list[StoredOperand]:
    """Return the weight and the bias of a norm layer, in this order, as far as it has them."""
    order = {"weight": 0, "bias": 1}
    known = [weight for weight in operands.weights if weight.name.rpartition(".")[2] in order]
    return sorted(known, key=lambda one: order[one.name.rpartition(".")[2]])


def _norm(make: Callable[[float], Function]) -> Callable[..., Recipe | None]:
    """Return the rule (a function that makes a recipe of operands) for a norm layer.

    make: returns the layer's function for an eps.
    """

    def rule(operands: Operands, eps: Sequence[float]) -> Recipe | None:
        x, weights = alike(operands), _scale_and_shift(operands)
        if x is None or len(weights) != len(operands.weights):
            return None
        return _rows([make(value) for value in eps], [x], weights)

    return rule


def _norm_backward(operands: Operands, eps: Sequence[float]) -> Recipe | None:
    """Return the recipe for the gradient of a layer norm's input; None if operands do not fit.

    eps: the values that are tried for what the norm adds to the variance.
    """
    x, weights = named(operands, operands.own.name), _scale_and_shift(operands)[:1]
    if operands.child is None or x is None or operands.child.shape != x.shape:
        return None
    return _rows([layer_norm_backward(value) for value in eps], [operands.child, x], weights)


def _product(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for x · Wᵀ + b, which `nn.Linear` computes; b may be missing.

    None if the operands do not fit.
    """
    x = next(iter(operands.inputs), None)
    weights = [one for one in operands.weights if len(one.shape) == 2]
    bias = [one for one in operands.weights if len(one.shape) == 1]
    if x is None or len(operands.inputs) > 1 or len(weights) != 1 or len(bias) > 1:
        return None
    weight = weights[0]
    if not x.shape or x.shape[-1] != weight.shape[1] or operands.own.shape[-1:] != weight.shape[:1]:
        return None

    def inputs(side: str) -> list[Array]:
        left = x.read(side).reshape(-1, weight.shape[1])
        return [left, weight.read(side).T, *(parameter.read(side) for parameter in bias)]

    rows = int(np.prod(operands.own.shape[:-1]))
    return _of_part(inputs, (rows, weight.shape[0]), weight.shape[1])


def _product_backward(operands: Operands, _: Any) -> Recipe | None:
    """Return the recipe for a gradient of `nn.Linear`, from the gradient g of its output.

    The input's gradient is g · W, the weight's gᵀ · x, and the bias's the sum of the rows of g.
    None if the operands do not fit.
    """
    g = operands.child
    if g is None or not g.shape:
        return None
    terms = int(np.prod(g.shape[:-1]))
    if operands.own.kind == "grad":
        return _of_input(operands, g)
    if len(operands.own.shape) == 1 and operands.own.shape == g.shape[-1:]:
        return _of_part(lambda side: _ones_and(g, side, terms), (1, g.shape[-1]), terms)
    x = [operand for operand in operands.inputs if operand.shape[-1:] == operands.own.shape[1:]]
    if len(x) != 1 or operands.own.shape[:1] != g.shape[-1:]:
        return None

    def inputs(side: str) -> list[Array]:
        return [g.read(side).reshape(terms, -1).T, x[0].read(side).reshape(terms, -1)]

    return _of_part(inputs, operands.own.shape, terms)


def _ones_and(g: StoredOperand, side: str, terms: int) -> list[Array]:
    """Return the operands of the sum of g over its rows, written as the product of ones and g."""
    return [np.ones((1, terms), np.float32), g.read(side).reshape(terms, -1)]


def _of_input(operands: Operands, g: StoredOperand) -> Recipe | None:
    """Return the recipe for g · W, the gradient of the input of `nn.Linear`.

    None if the operands do not fit. g: the gradient of the output.
    """
    weights = [weight for weight in operands.weights if len(weight.shape) == 2]
    if len(weights) != 1 or weights[0].shape != (g.shape[-1], *operands.own.shape[-1:]):
        return None

    def inputs(side: str) -> list[Array]:
        return [g.read(side).reshape(-1, g.shape[-1]), weights[0].read(side)]

    rows = int(np.prod(operands.own.shape[:-1]))
    return _of_part(inputs, (rows, operands.own.shape[-1]), g.shape[-1])


def _of_part(
    inputs: Callable[[str], Sequence[Array]], shape: tuple[int, ...], terms: int
) -> Recipe | None:
    """Return the recipe for a product of which some rows and columns are computed, evenly spread.

    None where an element sums too many terms, or where the product is empty.
    inputs: returns the two factors, and perhaps a bias, for a run ("a" or "b").
    shape: the product's. terms: how many terms an element sums.
    """
    rows, columns = shape
    if not (rows and columns and 0 < terms <= LONGEST):
        return None
    part = ProductPart(spread(rows, SAMPLE), spread(columns, max(SAMPLE, SAMPLE**2 // rows)))
    return Recipe((product(part),), inputs, lambda own: own.reshape(rows, columns), part.of)


_ATTENTIONS: Final = frozenset(
    f"ScaledDotProduct{kind}"
    for kind in (
        *("Attention", "AttentionMath", "FlashAttention", "FlashAttentionForCpu"),
        *("EfficientAttention", "CudnnAttention", "FusedAttentionOverrideable"),
    )
)
_PRODUCT: Final = "Bmm"
_STEPS_OF_ATTENTION: Final = frozenset((_PRODUCT, "Softmax", "SafeSoftmax", "Add", "Mul", "Div"))
"""The operations of attention where no fused kernel runs, as for a mask that has a gradient."""
_RULES: Final[Mapping[tuple[str, bool], Callable[..., Recipe | None]]] = {
    ("Tanh", True): _forward("tanh"),
    ("Tanh", False): _backward("tanh_backward", saved="output"),
    ("Sigmoid", True): _forward("sigmoid"),
    ("Sigmoid", False): _backward("sigmoid_backward", saved="output"),
    ("Silu", True): _forward("silu"),
    ("Silu", False): _backward("silu_backward", saved="input"),
    ("Gelu", True): _forward("gelu", "gelu(approximate='tanh')"),
    ("Gelu", False): _backward("gelu_backward", "gelu_backward(approximate='tanh')", saved="input"),
    ("Softmax", True): _softmax,
    ("Softmax", False): _softmax_backward,
    ("NativeLayerNorm", True): _norm(layer_norm),
    ("NativeLayerNorm", False): _norm_backward,
    ("RmsNorm", True): _norm(rms_norm),
    ("MseLoss", True): squares,
    ("MseLoss", False): squares_slope,
    ("LogSoftmax", True): logarithm,
    ("LogSoftmax", False): logarithm_slope,
    ("CrossEntropy", True): entropy,
    ("CrossEntropy", False): entropy_slope,
    **{(name, True): _product for name in ("Addmm", "Mm", "Linear")},
    **{(name, False): _product_backward for name in ("Addmm", "Mm", "Linear")},
}
"""The rules, by the name that `_single` gives, and whether the record is a value or a gradient."""
