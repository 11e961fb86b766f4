"""The rule for attention whose queries, keys and values were recorded under three names.

Three things are found by trial: which input is the query, the key and the value, whether the
attention is causal, and which tensor is its mask, if any. All functions that fit the shapes are in
the recipe, and the function with the nearest result is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import numpy as np

from anchorlib.diagnosis.recomputation.operands import Operands, StoredOperand
from anchorlib.diagnosis.recomputation.recipes import Recipe
from anchorlib.formulas import Attention, Function, attention, attention_backward

__all__ = ["attending"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Heads = Mapping[int, int]
_MOST: Final = 1 << 16
"""The most scores that each candidate function computes; where there are more, only those of the
first heads are computed."""
_LARGEST: Final = 1 << 18
"""The most scores of the query heads that share a key: more take minutes."""
_WITH_MASK: Final = 4
_MASKS: Final = 2  # tensors that are tried as masks
_SCALE: Final = re.compile(r"\bscale=([0-9.e+-]+)")


def attending(operands: Operands, texts: Sequence[str]) -> Recipe | None:
    """Return the recipe for attention, or one of its gradients; None if the operands do not fit.

    texts: the arguments of the operations, which state a scale other than 1/√d, where d is the
    width of a head.
    """
    result = operands.own if operands.own.kind == "value" else operands.child
    operands = operands if result is None else _without_mask(operands, result.shape)
    if (
        result is None
        or len(operands.inputs) != 3
        or any(len(x.shape) < 2 for x in operands.inputs)
    ):
        return None
    orders = [
        (q, k, v)
        for q, k, v in permutations(range(3))
        if _fits(operands.inputs, (q, k, v), result.shape)
    ]
    if not orders:
        return None
    scores = _scores(operands.inputs, orders[0])
    heads = _heads(operands.inputs, orders[0], scores)
    if heads is None:
        return None
    masks = _masks(operands, scores)
    of_mask = operands.own.kind != "value" and operands.own.name not in [
        operand.name for operand in operands.inputs
    ]
    if heads and of_mask and operands.own.shape != scores:
        return None  # it is a sum over heads of which some are not computed
    stated = {float(number) for text in texts for number in _SCALE.findall(text)}
    ways = [
        Attention(order, causal, mask, scale)
        for mask in (None, *range(3, 3 + len(masks)))
        for scale in (None, *sorted(stated))
        for causal in ([False, True] if mask is None else [False])
        for order in orders
    ]
    return _recipe(operands, ways, masks, heads)


def _without_mask(operands: Operands, out: Shape) -> Operands:
    """Return the operands without a mask that has a gradient and so counts as a fourth input.

    Such a mask was recorded, so that it is among the tensors that are tried as masks. Operands
    without such a mask are returned as they are. out: the shape of the output.
    """
    places = range(len(operands.inputs) if len(operands.inputs) == _WITH_MASK else 0)
    for at in sorted(places, key=lambda at: operands.inputs[at].name != operands.own.name):
        rest = (*operands.inputs[:at], *operands.inputs[at + 1 :])
        if any(_fits(rest, order, out) for order in permutations(range(3))):
            return replace(operands, inputs=rest)
    return operands


def _recipe(
    operands: Operands, ways: Sequence[Attention], masks: Sequence[StoredOperand], heads: Heads
) -> Recipe | None:
    """Return the recipe that tries each of `ways`; None where no function makes the record.

    The recipe's inputs are the query, key and value (in the order of `operands.inputs`), the masks,
    and the output's gradient if there is one.
    ways: the settings to try: which input is which, the mask, the scale, whether it is causal.
    heads: how many heads are computed, as `_heads` returns it.
    """

    def inputs(side: str) -> list[Array]:
        given = [operand.read(side) for operand in operands.inputs] + [
            _added(operand, side) for operand in masks
        ]
        given += [] if operands.child is None else [operands.child.read(side)]
        return [_some(values, heads) for values in given]

    functions = tuple(_functions(operands, ways, masks))
    return Recipe(functions, inputs, lambda own: _some(own, heads)) if functions else None


def _functions(
    operands: Operands, ways: Sequence[Attention], masks: Sequence[StoredOperand]
) -> Iterator[Function]:
    names = [operand.name for operand in (*operands.inputs, *masks)]
    for variant in ways:
        if operands.own.kind == "value":
            yield attention(variant)
        elif operands.own.name in names[:3]:
            yield attention_backward(
                variant, "qkv"[variant.order.index(names.index(operands.own.name))]
            )
        elif variant.mask is not None and names[variant.mask] == operands.own.name:
            yield attention_backward(variant, "mask")


def _fits(inputs: Sequence[StoredOperand], order: tuple[int, ...], out: Shape) -> bool:
    """Return whether the inputs, as q, k and v in this order, give an output of this shape.

    order: the indices of q, k and v in `inputs`. out: the shape.
    """
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


def _scores(inputs: Sequence[StoredOperand], order: tuple[int, ...]) -> Shape:
    q, k = (inputs[at].shape for at in order[:2])
    return (*q[:-1], k[-2])


def _heads(inputs: Sequence[StoredOperand], order: tuple[int, ...], scores: Shape) -> Heads | None:
    """Return how many heads are computed: a tensor's number of heads -> how many; {} for all.

    Attention with many scores is computed for some heads only, to save time. None where even the
    query heads that share one key head have too many scores.
    order: the indices of q, k and v in `inputs`. scores: the shape of the scores.
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
    """Return the heads of `x` that are computed: the first heads of the first image of the batch.

    heads: a tensor's number of heads -> how many of them are computed; {} for all, which returns
    `x` itself.
    """
    if not heads or x.ndim < 3:
        return x
    first = x[(slice(0, 1),) * (x.ndim - 3)]
    return first[..., : heads.get(x.shape[-3], 1), :, :]


def _masks(operands: Operands, scores: Shape) -> list[StoredOperand]:
    """Return the recorded tensors that may be the mask: boolean, or of the record's own dtype.

    scores: the shape of the attention's scores.
    """

    def fits(shape: Shape, dtype: str) -> bool:
        if dtype not in ("bool", operands.own.dtype) or not 2 <= len(shape) <= len(scores):
            return False
        pairs = zip(reversed(shape), reversed(scores), strict=False)
        return shape[-1] == scores[-1] and all(size in (1, other) for size, other in pairs)

    known = {operand.name for operand in operands.inputs} | (
        {operands.own.name} if operands.own.kind == "value" else set()
    )
    candidates = [operand for operand in operands.beside(fits) if operand.name not in known]
    return sorted(candidates, key=lambda operand: operand.name != operands.own.name)[:_MASKS]


def _added(mask: StoredOperand, side: str) -> Array:
    """Return the mask as it is added to the scores; a boolean mask becomes 0 and -inf.

    side: the run, "a" or "b".
    """
    values = mask.read(side)
    if mask.dtype != "bool":
        return values
    return np.where(values.astype(bool), np.float32(0), np.float32(-np.inf))
