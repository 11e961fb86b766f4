"""Operations written by hand, and the other formulas that planted faults put in their place.

Each `Change` swaps one formula of one kind of layer for another. By construction it is either
another way to round the same mathematics (`exact`), or different mathematics (a bug).
"""

# ruff: noqa: E501  # a table, a line a formula

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Tensors = tuple[torch.Tensor, ...]
Forward = Callable[..., torch.Tensor]
Backward = Callable[..., torch.Tensor]

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Change:
    """One formula in place of another.

    kind: the layers it fits. name: for people.
    exact: whether the new formula is algebraically the old one.
    forward: the new forward, of the layer's inputs; None: the old one.
    gradient: the new gradient (g, *inputs, y) of input number `of`; None: the old one.
    dtypes: the dtypes in which the new formula makes a difference worth planting.
    """

    kind: str
    name: str
    exact: bool
    forward: Forward | None = None
    gradient: Backward | None = None
    of: int = 0
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def attention(q, k, v, scale=None):
    """softmax(q kᵀ · scale) v; q, k, v: (batch, heads, length, width)."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return torch.softmax((q @ k.mT) * scale, -1) @ v


REFERENCE: dict[str, Forward] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "linear": functional.linear,
    "conv": lambda x, w, b: functional.conv2d(x, w, b, padding=1),
    "norm": lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b, 1e-5),
    "batch_norm": lambda x, w, b: functional.batch_norm(x, None, None, w, b, True, 0.0, 1e-5),
    "attention": attention,
}


def wide(formula: Forward) -> Forward:
    """`formula` in float64, rounded once: the best that a fused kernel could give."""
    return lambda *xs: formula(*(x.double() for x in xs)).to(xs[0].dtype)


def low(x: torch.Tensor) -> torch.Tensor:
    """`x` rounded to bfloat16 on the way."""
    return x.bfloat16().to(x.dtype)


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a · b + c, rounded once."""
    return (a.double() * b.double() + c.double()).to(c.dtype)


def _expm1_tanh(x):
    e = torch.expm1(2 * x)
    return e / (e + 2)


def _split_linear(x, w, b):
    k = x.shape[-1] // 2
    return x[..., :k] @ w[:, :k].mT + (x[..., k:] @ w[:, k:].mT + b)


def _normed(x, w, b, dims, eps, correction=0):
    shape = [1] * x.dim()
    shape[1 if len(dims) > 1 else -1] = -1
    centred = x - x.mean(dims, keepdim=True)
    variance = x.var(dims, correction=correction, keepdim=True)
    return centred * torch.rsqrt(variance + eps) * w.view(shape) + b.view(shape)


def _norm_gradient(g, x, w, _b, _y, mean_term=True):
    centred = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    unit, gw = centred * rstd, g * w
    inner = gw - unit * (gw * unit).mean(-1, keepdim=True)
    return rstd * (inner - gw.mean(-1, keepdim=True) if mean_term else inner)


def _flat(x):
    return x.reshape(-1, x.shape[-1])


def _conv_by_matmul(x, w, b):
    columns = functional.unfold(x, w.shape[2:], padding=1)
    return (w.flatten(1) @ columns + b[:, None]).view(x.shape[0], -1, *x.shape[2:])


def _gelu_slope(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))), torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _halves_weight(g, x, *_):
    gs, xs = _flat(g), _flat(x)
    k = max(len(gs) // 2, 1)
    return gs[:k].mT @ xs[:k] + gs[k:].mT @ xs[k:]


_ONE = ("float32",)


def _scaled(kind: str, of: str, by: float, old: Backward | None) -> Change:
    """A wrong constant factor, forward or in the gradient of the first input."""
    if of == "forward":
        return Change(kind, f"times {1 + by}", False, lambda *xs: REFERENCE[kind](*xs) * (1 + by))
    assert old is not None
    return Change(kind, f"gradient times {1 + by}", False, None, lambda *a: old(*a) * (1 + by))


_SLOPES: dict[str, Backward] = {
    "tanh": lambda g, x, y: aten.tanh_backward(g, y),
    "sigmoid": lambda g, x, y: aten.sigmoid_backward(g, y),
    "relu": lambda g, x, y: aten.threshold_backward(g, y, 0),
    "gelu": lambda g, x, y: aten.gelu_backward(g, x),
    "linear": lambda g, x, w, b, y: g @ w,
    "norm": _norm_gradient,
}

ROUNDING = [
    Change("tanh", "g·(1−y·y)", True, None, lambda g, x, y: g * (1 - y * y)),
    Change("tanh", "fma(−g·y, y, g)", True, None, lambda g, x, y: fma(-(g * y), y, g)),
    Change("tanh", "g − g·y·y", True, None, lambda g, x, y: g - g * y * y),
    Change("tanh", "g·(1−y)·(1+y)", True, None, lambda g, x, y: g * (1 - y) * (1 + y)),
    Change("tanh", "by expm1", True, _expm1_tanh),
    Change("tanh", "in float64", True, wide(torch.tanh), dtypes=_ONE),
    Change("sigmoid", "1/(1+exp(−x))", True, lambda x: 1 / (1 + torch.exp(-x))),
    Change("sigmoid", "in float64", True, wide(torch.sigmoid), dtypes=_ONE),
    Change("sigmoid", "g·(y·(1−y))", True, None, lambda g, x, y: g * (y * (1 - y))),
    Change("sigmoid", "g·y − g·y·y", True, None, lambda g, x, y: g * y - g * y * y),
    Change("gelu", "x·Φ(x)", True, lambda x: x * _gelu_slope(x)[0]),
    Change("gelu", "in float64", True, wide(functional.gelu), dtypes=_ONE),
    Change("gelu", "g·(Φ+x·φ)", True, None, lambda g, x, y: g * (_gelu_slope(x)[0] + x * _gelu_slope(x)[1])),
    Change("linear", "sum in two halves", True, _split_linear),
    Change("linear", "in float64", True, wide(functional.linear), dtypes=_ONE),
    Change("linear", "bias added apart", True, lambda x, w, b: x @ w.mT + b),
    Change("linear", "∂x in two halves", True, None, lambda g, x, w, b, y: (
        g[..., : len(w) // 2] @ w[: len(w) // 2] + g[..., len(w) // 2 :] @ w[len(w) // 2 :])),
    Change("linear", "∂w in two halves", True, None, _halves_weight, 1),
    Change("linear", "∂b in float64", True, None, lambda g, *_: _flat(g).double().sum(0).to(g.dtype), 2),
    Change("linear", "∂b backwards", True, None, lambda g, *_: _flat(g).flip(0).cumsum(0)[-1], 2),
    Change("conv", "by matmul", True, _conv_by_matmul),
    Change("conv", "in float64", True, wide(REFERENCE["conv"]), dtypes=_ONE),
    Change("norm", "by hand", True, lambda x, w, b: _normed(x, w, b, (-1,), 1e-5)),
    Change("norm", "in float64", True, wide(REFERENCE["norm"]), dtypes=_ONE),
    Change("norm", "∂x by hand", True, None, _norm_gradient),
    Change("batch_norm", "by hand", True, lambda x, w, b: _normed(x, w, b, (0, 2, 3), 1e-5)),
    Change("batch_norm", "in float64", True, wide(REFERENCE["batch_norm"]), dtypes=_ONE),
    Change("attention", "fused", True, functional.scaled_dot_product_attention),
    Change("attention", "q scaled first", True, lambda q, k, v: attention(q / math.sqrt(q.shape[-1]), k, v, 1)),
]  # fmt: skip

BUGS = [
    *(_scaled(kind, "forward", by, None) for kind in REFERENCE for by in (0.5, 0.125)),
    *(_scaled(kind, "gradient", by, old) for kind, old in _SLOPES.items() for by in (0.5, 0.125)),
    Change("tanh", "y rounded to bf16 in backward", False, None, lambda g, x, y: g * (1 - low(y) ** 2), dtypes=_ONE),
    Change("tanh", "1−y for 1−y·y", False, None, lambda g, x, y: g * (1 - y)),
    Change("tanh", "x rounded to bf16", False, lambda x: torch.tanh(low(x)), dtypes=_ONE),
    Change("sigmoid", "y rounded to bf16", False, lambda x: low(torch.sigmoid(x)), dtypes=_ONE),
    Change("sigmoid", "y for y·(1−y)", False, None, lambda g, x, y: g * y),
    Change("relu", "leaky", False, lambda x: functional.leaky_relu(x, 0.2)),
    Change("relu", "g rounded to bf16", False, None, lambda g, x, y: low(g) * (y > 0), dtypes=_ONE),
    Change("gelu", "tanh approximation", False, lambda x: functional.gelu(x, approximate="tanh"), dtypes=_ONE),
    Change("gelu", "Φ for Φ+x·φ", False, None, lambda g, x, y: g * _gelu_slope(x)[0]),
    Change("linear", "weight rounded to bf16", False, lambda x, w, b: functional.linear(x, low(w), b), dtypes=_ONE),
    Change("linear", "x rounded to bf16", False, lambda x, w, b: functional.linear(low(x), w, b), dtypes=_ONE),
    Change("linear", "∂w without the first sample", False, None, lambda g, x, *_: _flat(g)[1:].mT @ _flat(x)[1:], 1),
    Change("linear", "∂w of x rounded to bf16", False, None, lambda g, x, *_: _flat(g).mT @ low(_flat(x)), 1, dtypes=_ONE),
    Change("linear", "∂b is a mean", False, None, lambda g, *_: _flat(g).mean(0) * 0.75, 2),
    Change("linear", "∂x of w rounded to bf16", False, None, lambda g, x, w, b, y: g @ low(w), dtypes=_ONE),
    Change("conv", "weight rounded to bf16", False, lambda x, w, b: functional.conv2d(x, low(w), b, padding=1), dtypes=_ONE),
    Change("conv", "padded with the edge", False, lambda x, w, b: functional.conv2d(functional.pad(x, (1,) * 4, "replicate"), w, b)),
    Change("norm", "eps 1e-3 for 1e-5", False, lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b, 1e-3), dtypes=_ONE),
    Change("norm", "variance over n−1", False, lambda x, w, b: _normed(x, w, b, (-1,), 1e-5, 1), dtypes=_ONE),
    Change("norm", "∂x without the mean", False, None, lambda *a: _norm_gradient(*a, mean_term=False)),
    Change("batch_norm", "eps 1e-3 for 1e-5", False, lambda x, w, b: functional.batch_norm(x, None, None, w, b, True, 0.0, 1e-3), dtypes=_ONE),
    Change("batch_norm", "variance over n−1", False, lambda x, w, b: _normed(x, w, b, (0, 2, 3), 1e-5, 1), dtypes=_ONE),
    Change("attention", "scale 1/d", False, lambda q, k, v: attention(q, k, v, 1 / q.shape[-1])),
    Change("attention", "k rounded to bf16", False, lambda q, k, v: attention(q, low(k), v), dtypes=_ONE),
    Change("attention", "causal", False, lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)),
]  # fmt: skip
