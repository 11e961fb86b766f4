"""The rule for attention whose queries, keys and values were recorded under three names.

Which input is which, whether the attention is causal, and which tensor is its mask, if any, is
found by trial: all functions that fit the shapes are in the recipe, and the nearest result tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operand, Operands
from anchorlib.diagnosis.recomputation.recipes import Recipe
from anchorlib.formulas import Attention, Function, attention, attention_backward

__all__ = ["attending"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Heads = Mapping[int, int]
_MOST: Final = 1 << 16
"""Scores that are computed for each way of computing: of more, those of the first heads."""
_LARGEST: Final = 1 << 18
"""The most scores of the query heads that share a key: more take minutes."""
_WITH_MASK: Final = 4
_MASKS: Final = 2  # tensors that are tried as masks
_SCALE: Final = re.compile(r"\bscale=([0-9.e+-]+)")


def attending(told: Operands, texts: Sequence[str]) -> Recipe | None:
    """The recipe for attention, or for one of its gradients; None where the operands do not fit.

    texts: the arguments of the operations, which state a scale other than 1/√d.
    """
    result = told.own if told.own.kind == "value" else told.child
    told = told if result is None else _without_mask(told, result.shape)
    if result is None or len(told.inputs) != 3 or any(len(x.shape) < 2 for x in told.inputs):
        return None
    orders = [
        (q, k, v)
        for q, k, v in permutations(range(3))
        if _fits(told.inputs, (q, k, v), result.shape)
    ]
    if not orders:
        return None
    scores = _scores(told.inputs, orders[0])
    heads = _heads(told.inputs, orders[0], scores)
    if heads is None:
        return None
    masks = _masks(told, scores)
    of_mask = told.own.kind != "value" and told.own.name not in [one.name for one in told.inputs]
    if heads and of_mask and told.own.shape != scores:
        return None  # it is a sum over heads of which some are not computed
    stated = {float(one) for text in texts for one in _SCALE.findall(text)}
    ways = [
        Attention(order, causal, mask, scale)
        for mask in (None, *range(3, 3 + len(masks)))
        for scale in (None, *sorted(stated))
        for causal in ([False, True] if mask is None else [False])
        for order in orders
    ]
    return _recipe(told, ways, masks, heads)


def _without_mask(told: Operands, out: Shape) -> Operands:
    """The operands without a mask that has a gradient, which autograd knows as a fourth input.

    Being recorded, it is among the tensors that are tried as masks.
    """
    places = range(len(told.inputs) if len(told.inputs) == _WITH_MASK else 0)
    for at in sorted(places, key=lambda at: told.inputs[at].name != told.own.name):
        rest = (*told.inputs[:at], *told.inputs[at + 1 :])
        if any(_fits(rest, order, out) for order in permutations(range(3))):
            return replace(told, inputs=rest)
    return told


def _recipe(
    told: Operands, ways: Sequence[Attention], masks: Sequence[Operand], heads: Heads
) -> Recipe | None:
    """The recipe that tries each way; its inputs are q, k, v, masks and the gradient, if any."""

    def inputs(side: str) -> list[Array]:
        given = [one.read(side) for one in told.inputs] + [_added(one, side) for one in masks]
        given += [] if told.child is None else [told.child.read(side)]
        return [_some(one, heads) for one in given]

    functions = tuple(_functions(told, ways, masks))
    return Recipe(functions, inputs, lambda own: _some(own, heads)) if functions else None


def _functions(
    told: Operands, ways: Sequence[Attention], masks: Sequence[Operand]
) -> Iterator[Function]:
    names = [one.name for one in (*told.inputs, *masks)]
    for way in ways:
        if told.own.kind == "value":
            yield attention(way)
        elif told.own.name in names[:3]:
            yield attention_backward(way, "qkv"[way.order.index(names.index(told.own.name))])
        elif way.mask is not None and names[way.mask] == told.own.name:
            yield attention_backward(way, "mask")


def _fits(inputs: Sequence[Operand], order: tuple[int, ...], out: Shape) -> bool:
    """Whether the inputs, as q, k and v in this order, give an output of this shape."""
    q, k, v = (inputs[at].shape for at in order)
    if (
        not 2 <= len(q) == len(k) == len(v)
        or q[-1] != k[-1]
        or k[:-1] != v[:-1]
        or 0 in (*q, *k, *v)
    ):
        return False
    grouped = q[-3:-2] == k[-3:-2] or (q[-3] % k[-3] == 0)
    return q[:-3] == k[:-3] and grouped and out == (*q[:-1], v[-1])


def _scores(inputs: Sequence[Operand], order: tuple[int, ...]) -> Shape:
    q, k = (inputs[at].shape for at in order[:2])
    return (*q[:-1], k[-2])


def _heads(inputs: Sequence[Operand], order: tuple[int, ...], scores: Shape) -> Heads | None:
    """How many heads are computed, by the number of a tensor's heads; {} for all of them.

    None where those that share one key have too many scores.
    """
    count = int(np.prod(scores))
    q, k = (inputs[at].shape for at in order[:2])
    shared = q[-3] // k[-3] if len(q) > 2 else 1
    each = shared * scores[-2] * scores[-1]
    if each > _LARGEST:
        return None
    if count <= _MOST or len(q) < 3:
        return {}
    some = min(max(_MOST // each, 1), k[-3])
    return {k[-3]: some, q[-3]: some * shared}


def _some(x: Array, heads: Heads) -> Array:
    """`x` with its first heads alone, of the first image; `x` itself where all are computed."""
    if not heads or x.ndim < 3:
        return x
    first = x[(slice(0, 1),) * (x.ndim - 3)]
    return first[..., : heads.get(x.shape[-3], 1), :, :]


def _masks(told: Operands, scores: Shape) -> list[Operand]:
    """The recorded tensors that may be the mask: boolean, or of the scores' own type."""

    def fits(shape: Shape, dtype: str) -> bool:
        if dtype not in ("bool", told.own.dtype) or not 2 <= len(shape) <= len(scores):
            return False
        pairs = zip(reversed(shape), reversed(scores), strict=False)
        return shape[-1] == scores[-1] and all(one in (1, other) for one, other in pairs)

    known = {one.name for one in told.inputs} | (
        {told.own.name} if told.own.kind == "value" else set()
    )
    found = [one for one in told.beside(fits) if one.name not in known]
    return sorted(found, key=lambda one: one.name != told.own.name)[:_MASKS]


def _added(mask: Operand, side: str) -> Array:
    """The mask as it is added to the scores: of a boolean one 0 and -inf."""
    values = mask.read(side)
    if mask.dtype != "bool":
        return values
    return np.where(values.astype(bool), np.float32(0), np.float32(-np.inf))
