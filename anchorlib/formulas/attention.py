"""Attention: softmax(scale·q·kᵀ + mask)·v, and its gradients.

Fused kernels add up in blocks and keep a running maximum, in orders that depend on the machine.
torch's own kernels are tried, and formulas with sums in a few orders. Where none of them fits, the
formula of a run stays unknown, but its distance from the true value is still measured.

Where q has more heads than k and v (grouped queries), each head of k and v serves several of q's
that follow one another, and its gradient is the sum of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.formulas.elementary import Library
from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel, kernel_gradients
from anchorlib.formulas.products import Product, fused, sequential
from anchorlib.formulas.rounded import Rounded

__all__ = ["Attention", "attention", "attention_backward"]

Array = np.ndarray[Any, Any]
_ORDERS: Final[tuple[tuple[str, Product], ...]] = (("fma", fused), ("sequential", sequential))
_KERNELS: Final = ("scaled_dot_product_attention", "_scaled_dot_product_attention_math")


class Attention(NamedTuple):
    """How attention is computed from tensors that are given in some order.

    order: the indices of q, k and v among the inputs.
    causal: whether a position of the sequence attends only to itself and to those before it.
    mask: the index of the input that is added to the scores (the products q·kᵀ, scaled); None
    without a mask. A boolean mask has to be given as 0 and -inf.
    scale: the factor of q·kᵀ; None stands for 1/√d, where d is the size of q's last axis.
    """

    order: tuple[int, int, int] = (0, 1, 2)
    causal: bool = False
    mask: int | None = None
    scale: float | None = None

    def suffix(self) -> str:
        """Return the settings as text for the end of a function's name: ", causal, scale=0.5".

        Defaults are left out, so the text is "" where all settings are defaults.
        """
        which = "".join("qkv"[self.order.index(at)] for at in range(3))
        said = [", causal"] * self.causal + [", masked"] * (self.mask is not None)
        said += [] if self.scale is None else [f", scale={self.scale:g}"]
        return "".join(said + [f", given as {which}"] * (which != "qkv"))

    def arguments(self, given: Sequence[Array]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments for torch's attention kernels.

        given: the inputs of attention; `order` and `mask` are indices in them.
        """
        q, k, v = (given[at] for at in self.order)
        mask = None if self.mask is None else given[self.mask]
        named = {"scale": self.scale, "enable_gqa": q.shape[-3:-2] != k.shape[-3:-2]}
        return [q, k, v, mask, 0.0, self.causal], named


class _Way(NamedTuple):
    """One way to round attention, which decides between formulas that are equal in real numbers.

    times: computes matrix products, with the terms added in one order.
    early: whether q is multiplied by the scale before q·kᵀ is computed; if not, q·kᵀ is.
    """

    times: Product
    early: bool


class _Weights(NamedTuple):
    """q, k, v and the weights p of attention.

    k and v are repeated to as many heads as q has.

    root: the factor of q·kᵀ in the scores.
    p: the softmax of the scores, which are scale·q·kᵀ + mask.
    """

    q: Rounded
    k: Rounded
    v: Rounded
    root: float
    p: Rounded


def attention(how: Attention) -> Function:
    """Return the `Function` that gives the output of attention: softmax(scale·q·kᵀ + mask)·v.

    The inputs of the `Function`: q, k, v and perhaps the mask, at the indices that `how` says. The
    shape of q, k and v is (…, positions in the sequence, d).
    """

    def form(way: _Way) -> Callable[..., Rounded]:
        def compute(lib: Library, *given: Rounded) -> Rounded:
            weights = _weights(lib, how, way, given)
            return way.times(weights.p, weights.v)

        return compute

    def library(name: str) -> Kernel:
        def compute(inputs: Sequence[Array], precision: str) -> Array:
            arguments, named = how.arguments(inputs)
            return kernel(name, arguments, precision, **named)

        return Kernel(f"torch's {name.strip('_')}", compute)

    forms = [
        Formula(f"softmax({text})·v, {name}", form(_Way(times, early)), elementary=True)
        for text, early in (("q·kᵀ/√d", False), ("(q/√d)·kᵀ", True))
        for name, times in _ORDERS
    ]
    return Function(f"attention{how.suffix()}", tuple(forms), tuple(map(library, _KERNELS)))


def attention_backward(how: Attention, part: str) -> Function:
    """Return the `Function` that gives a gradient of attention.

    The inputs of the `Function`: those of `attention`, then the output's gradient.

    Let p be the softmax, o the output, g the output's gradient. The gradient of v is pᵀ·g. The
    gradient of the scores is s = p*(g·vᵀ - r), where each row of r is the sum of that row of
    p*(g·vᵀ), or of g*o, which is equal. The gradients of q and k are s·k and sᵀ·q times the scale,
    which is 1/√d by default. The gradient of a mask is s, added up over the heads and images that
    share the mask.

    part: whose gradient, "q", "k", "v" or "mask".
    """
    if part == "mask":
        return _mask_backward(how)

    def form(way: _Way, *, of_output: bool) -> Callable[..., Rounded]:
        def compute(lib: Library, *given: Rounded) -> Rounded:
            weights, g = _weights(lib, how, way, given[:-1]), given[-1]
            if part == "v":
                return _shared(way.times(_turned(weights.p), g), given[how.order[2]])
            slope = _slope(weights, way, g, of_output=of_output)
            slope = slope * weights.root if way.early else slope
            left, right = (slope, weights.k) if part == "q" else (_turned(slope), weights.q)
            made = way.times(left, right)
            made = made if way.early else made * weights.root
            return _shared(made, given[how.order["qkv".index(part)]])

        return compute

    def library(name: str) -> Kernel:
        def compute(inputs: Sequence[Array], precision: str) -> Array:
            arguments, named = how.arguments(inputs[:-1])
            made = kernel_gradients(name, arguments, inputs[-1], precision, 3, **named)
            return made["qkv".index(part)]

        return Kernel(f"torch's {name.strip('_')}, backward", compute)

    text = {"q": "s·k/√d", "k": "sᵀ·q/√d", "v": "pᵀ·g"}[part]
    ways = [(False, "p*(g·vᵀ)"), (True, "g*o")] if part != "v" else [(False, "")]
    forms = [
        Formula(
            f"{text}{', scaled early' * early}{f', r of {row}' if row else ''}, {name}",
            form(_Way(times, early), of_output=of_output),
            elementary=True,
        )
        for early in (False, True)
        for of_output, row in ways
        for name, times in _ORDERS
    ]
    name = f"attention_backward, {part}{how.suffix()}"
    return Function(name, tuple(forms), tuple(map(library, _KERNELS)))


def _mask_backward(how: Attention) -> Function:
    """Return the `Function` that gives the mask's gradient; inputs as for `attention_backward`.

    The mask's gradient is the gradient of the scores, added up over the axes along which the mask
    was broadcast, such as heads that share a mask.
    """
    mask = how.mask or 0

    def form(way: _Way, *, of_output: bool) -> Callable[..., Rounded]:
        def compute(lib: Library, *given: Rounded) -> Rounded:
            weights = _weights(lib, how, way, given[:-1])
            slope = _slope(weights, way, given[-1], of_output=of_output)
            return _added_up(slope, given[mask].values.shape)

        return compute

    def library(name: str) -> Kernel:
        def compute(inputs: Sequence[Array], precision: str) -> Array:
            arguments, named = how.arguments(inputs[:-1])
            return kernel_gradients(name, arguments, inputs[-1], precision, 4, **named)[3]

        return Kernel(f"torch's {name.strip('_')}, backward", compute)

    forms = [
        Formula(
            f"s{', scaled early' * early}, r of {row}, {name}",
            form(_Way(times, early), of_output=of_output),
            elementary=True,
        )
        for early in (False, True)
        for of_output, row in ((False, "p*(g·vᵀ)"), (True, "g*o"))
        for name, times in _ORDERS
    ]
    name = f"attention_backward, mask{how.suffix()}"
    return Function(name, tuple(forms), tuple(map(library, _KERNELS)))


def _slope(weights: _Weights, way: _Way, g: Rounded, *, of_output: bool) -> Rounded:
    """Return the gradient of the scores, that is, of the softmax's input: p*(g·vᵀ - r).

    g: the gradient of attention's output o.
    of_output: whether r, a sum for each row, is the sum of g*o or of p*(g·vᵀ). The sums differ in
    rounding only.
    """
    arrived = way.times(g, _turned(weights.v))
    terms = g * way.times(weights.p, weights.v) if of_output else weights.p * arrived
    return weights.p * (arrived - terms.sum())


def _added_up(x: Rounded, shape: tuple[int, ...]) -> Rounded:
    """Return `x` summed to the shape `shape`, which was broadcast to the shape of `x`.

    The sum goes over the axes along which `shape` was broadcast. The terms are added one after
    another.
    """
    lengths = (1,) * (x.values.ndim - len(shape)) + shape
    axes = [at for at, (n, m) in enumerate(zip(x.values.shape, lengths, strict=True)) if n != m]
    if axes:
        last = range(-len(axes), 0)
        parts = x.map(lambda one: np.moveaxis(one, axes, last))
        kept = parts.values.shape[: -len(axes)]
        x = parts.map(lambda one: one.reshape(*kept, -1)).sum(order="sequential")
    return x.map(lambda one: one.reshape(shape))


def _weights(lib: Library, how: Attention, way: _Way, given: Sequence[Rounded]) -> _Weights:
    q, k, v = (given[at] for at in how.order)
    k, v = (_repeated(one, q) for one in (k, v))
    root = 1 / math.sqrt(q.values.shape[-1]) if how.scale is None else how.scale
    scores = way.times(q * root, _turned(k)) if way.early else way.times(q, _turned(k)) * root
    if how.causal:
        hidden = np.triu(np.ones(scores.values.shape[-2:], bool), 1)
        scores = scores.map(lambda one: np.where(hidden, -np.inf, one))
    if how.mask is not None:
        scores = scores + given[how.mask]
    return _Weights(q, k, v, root, _softmax(lib, scores))


def _softmax(lib: Library, scores: Rounded) -> Rounded:
    """Return the softmax of `scores` over the last axis, with the exp of the library `lib`.

    A row of nothing but -inf gives 0, as in torch.
    """
    top = scores.map(lambda one: one.max(-1, keepdims=True))
    e = lib.exp(scores - top.map(lambda one: np.where(np.isneginf(one), 0, one)))
    total = e.sum()
    return e / total.map(lambda one: np.where(one == 0, 1, one))


def _repeated(x: Rounded, q: Rounded) -> Rounded:
    """Return `x` with each head (third axis from the end) repeated, to as many heads as q has."""
    if x.values.ndim < 3 or x.values.shape[-3] == q.values.shape[-3]:
        return x
    times = q.values.shape[-3] // x.values.shape[-3]
    return x.map(lambda one: np.repeat(one, times, -3))


def _shared(gradient: Rounded, x: Rounded) -> Rounded:
    """Return the gradient of `x`, whose heads were repeated to as many as q has.

    gradient: the gradient of the repeated tensor. It is summed over the copies of each head.
    """
    heads = x.values.shape[-3:-2]
    if heads == gradient.values.shape[-3:-2]:
        return gradient
    parts = gradient.values.reshape(*x.values.shape[:-3], *heads, -1, *x.values.shape[-2:])
    total = gradient.of(parts[..., 0, :, :])
    for at in range(1, parts.shape[-3]):
        total = total + gradient.of(parts[..., at, :, :])
    return total


def _turned(x: Rounded) -> Rounded:
    return x.map(lambda one: np.swapaxes(one, -1, -2))
