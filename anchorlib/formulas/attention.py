"""Attention: softmax(q·kᵀ/√d)·v, over all places or over each place and those before it.

Fused kernels add up in blocks and keep a running maximum, in orders that depend on the machine.
torch's own kernels are tried, and formulas with sums in a few orders. Where none of them fits, the
formula of a run stays unknown, but its distance from the true value is still measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anchorlib.formulas.elementary import Library
from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel
from anchorlib.formulas.products import Product, fused, sequential
from anchorlib.formulas.rounded import Rounded

__all__ = ["attention"]

Array = np.ndarray[Any, Any]


def attention(*, causal: bool, order: tuple[int, int, int] = (0, 1, 2)) -> Function:
    """The attention function; its inputs are three arrays (…, places, d).

    causal: whether a place attends only to itself and to the places before it.
    order: the numbers of the inputs that are q, k and v.
    """

    def form(times: Product, *, early: bool) -> Callable[..., Rounded]:
        def compute(lib: Library, *given: Rounded) -> Rounded:
            q, k, v = (given[at] for at in order)
            root = 1 / math.sqrt(q.values.shape[-1])
            scores = times(q * root, _turned(k)) if early else times(q, _turned(k)) * root
            if causal:
                hidden = np.triu(np.ones(scores.values.shape[-2:], bool), 1)
                scores = scores.map(lambda one: np.where(hidden, -np.inf, one))
            e = lib.exp(scores - scores.map(lambda one: one.max(-1, keepdims=True)))
            return times(e / e.sum(), v)

        return compute

    forms = [
        Formula(f"softmax({text})·v, {name}", form(times, early=early), elementary=True)
        for text, early in (("q·kᵀ/√d", False), ("(q/√d)·kᵀ", True))
        for name, times in (("fma", fused), ("sequential", sequential))
    ]

    def library(name: str) -> Kernel:
        def compute(inputs: Sequence[Array], precision: str) -> Array:
            return kernel(name, [*(inputs[at] for at in order), None, 0.0, causal], precision)

        return Kernel(f"torch's {name.strip('_')}", compute)

    kernels = map(library, ("scaled_dot_product_attention", "_scaled_dot_product_attention_math"))
    which = "qkv" if order == (0, 1, 2) else "".join("qkv"[order.index(at)] for at in range(3))
    said = [", causal"] * causal + [f", given as {which}"] * (which != "qkv")
    return Function(f"attention{''.join(said)}", tuple(forms), tuple(kernels))


def _turned(x: Rounded) -> Rounded:
    return x.map(lambda one: np.swapaxes(one, -1, -2))
