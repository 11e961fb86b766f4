"""Sums of products computed in float64, and how far rounding may move such sums.

    products     Σ p·q over one axis: linear layers, attention, and their gradients
    plain sums   Σ g over all axes but one: the gradient of a bias
    convolutions, the gradients of their weights: see `anchorlib.diagnosis.sizes.convolutions`

Each addition rounds by half an eps of the partial sum, at most. After k terms of either sign, the
partial sum is about √k terms large. So n additions round by about ½ eps·√n·‖t‖, where ‖t‖² is the
sum of the squares of all terms, however much of them cancels. Weight gradients of convolutions
behind batch norms, of 512 to 65,536 terms, by one thread and by two, were 0.06 to 0.16 eps·√n·‖t‖
from float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ReferenceSum", "Task", "certain", "plain_sums", "products", "shifted", "task_of"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Form = Callable[[Array, Array], Array]
EPS32 = 2.0**-23
CERTAIN = 4.0
"""By how many times the estimate above the rounding of a long sum is allowed to exceed it. Where
many terms in a row are alike, as behind a batch norm over the background of images, their roundings
have one sign: the gradient of a weight of one input channel, a sum of 16,384 terms, was twice the
estimate away from the sum in float64."""


class ReferenceSum(NamedTuple):
    """A tensor of sums, computed in float64, with what its rounding depends on.

    total: the tensor itself, a sum in each element. spread: the root of the sum of the squares of
    all terms of all elements.
    terms: how many terms each element has.
    times: the factor by which the usual estimate of the additions' rounding is multiplied.
    """

    total: Array
    spread: float
    terms: int
    times: float = 1.0

    def rounding(self, eps: float) -> float:
        """Return an estimate of ‖r − total‖₂ for a result r that differs by rounding alone.

        eps: the eps of r's dtype. The estimate is no strict bound. It counts the rounding of the
        additions, which kernels do in float32 or finer (times the allowance `times`), and of the
        result; for an eps above that of float32 also the rounding of the operands.
        """
        adding = self.times * min(eps, EPS32) * math.sqrt(self.terms) * self.spread
        low = eps * self.spread if eps > EPS32 else 0.0
        return 0.5 * (adding + low + eps * float(np.linalg.norm(self.total)))


@dataclass(frozen=True, slots=True)
class Task:
    """A sum that has yet to be computed.

    work: how many multiplications it takes. compute: computes it.
    """

    work: int
    compute: Callable[[], ReferenceSum]


def task_of(form: Form, p: Array, q: Array, terms: int, elements: int) -> Task:
    """Return the task of computing `form` of two operands.

    form: a sum of products of the operands' elements. Given the squares of both operands, it
        returns the sums of the squares of the terms, from which the spread is computed.
    terms: how many terms each element has. elements: how many elements the result has.
    """

    def compute() -> ReferenceSum:
        return ReferenceSum(form(p, q), math.sqrt(float(form(p * p, q * q).sum())), terms)

    return Task(2 * terms * elements, compute)


def certain(task: Task) -> Task:
    """Return the task with the allowance CERTAIN for the rounding of its additions.

    CERTAIN becomes `ReferenceSum.times`. It is meant for sums whose terms are added one after
    another.
    """

    def compute() -> ReferenceSum:
        return task.compute()._replace(times=CERTAIN)

    return Task(task.work, compute)


def products(p: Array, q: Array, shape: Shape) -> Iterator[Task]:
    """Yield tasks for the matrix products of this shape of two operands or their transposes."""
    if min(p.ndim, q.ndim) < 2:
        return
    flat, flat_q = (left.reshape(-1, left.shape[-1]) for left in (p, q))
    ways: list[tuple[Array, Array]] = [(p, q), (p, q.swapaxes(-1, -2)), (p.swapaxes(-1, -2), q)]
    if max(p.ndim, q.ndim) > 2:
        ways.append((flat.T, flat_q))
    for left, right in ways:
        if _product_shape(left.shape, right.shape) == shape:
            yield task_of(np.matmul, left, right, left.shape[-1], math.prod(shape))


def shifted(task: Task, bias: Array) -> Task:
    """Return the task with a bias added along the last axis, as one more term of each element."""

    def compute() -> ReferenceSum:
        unshifted = task.compute()
        copies = unshifted.total.size / max(len(bias), 1)
        bias_spread = math.sqrt(copies) * float(np.linalg.norm(bias))
        spread = math.hypot(unshifted.spread, bias_spread)
        return unshifted._replace(
            total=unshifted.total + bias, spread=spread, terms=unshifted.terms + 1
        )

    return Task(task.work, compute)


def _product_shape(left: Shape, right: Shape) -> Shape | None:
    if left[-1] != right[-2]:
        return None
    try:
        return (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])
    except ValueError:
        return None


def _one_by_one(task: Task, walks: Callable[[], float]) -> ReferenceSum:
    """Return a sum, with the spread that it has where one term is added after another.

    Kernels add up a bias's gradient like this, without blocks. Neighbouring terms mostly have equal
    signs, so that partial sums grow until the sign changes. The rounding depends on how far the
    partial sums go from 0 in the order of the terms. 2,048 terms of one sign, by one thread and by
    two, were 19 eps of the total apart; 4,096 terms that cancel to nothing behind a batch norm were
    3.4 eps of the sum of their sizes apart, five times as much as terms in a random order would be.
    walks: returns the size of the partial sums, in the order of the terms.
    """
    terms_added = task.compute()
    return terms_added._replace(
        spread=max(terms_added.spread, float(np.linalg.norm(terms_added.total)), walks())
    )


def plain_sums(gradient: Array, shape: Shape) -> Iterator[Task]:
    """Yield tasks for the sums over all axes but the second, or but the last, of this shape."""
    if len(shape) != 1 or gradient.ndim < 2:
        return
    for axis in dict.fromkeys((1, gradient.ndim - 1)):
        if gradient.shape[axis] == shape[0]:
            others = tuple(n for n in range(gradient.ndim) if n != axis)
            terms = gradient.size // max(shape[0], 1)
            ones = np.ones(1)

            def form(p: Array, _: Array, over: Shape = others) -> Array:
                total: Array = p.sum(axis=over)
                return total

            task = task_of(form, gradient, ones, terms, shape[0])
            walks = partial(_walk, np.moveaxis(gradient, axis, 0).reshape(shape[0], -1))
            yield certain(Task(task.work, partial(_one_by_one, task, walks)))


def _walk(terms: Array) -> float:
    """Return the size of the partial sums: the root of the sum, over rows, of their mean square.

    terms: a row for each sum, with its terms in order.
    """
    return math.sqrt(float(np.square(np.cumsum(terms, axis=1)).mean(axis=1).sum()))
