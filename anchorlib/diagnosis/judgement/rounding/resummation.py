"""Sums computed once more in float64 from their recorded inputs, to see how far they may round.

A sum whose terms cancel rounds by many eps of the small rest. By how many eps depends on the terms
(`anchorlib.diagnosis.sizes.sums`), so that no constant limit exists. The operands are found by
trial among the parents and the inputs of the pass: they are the records whose products or sums
reproduce the record of either run. Where values were not kept, or are too many, the norms of the
operands bound the terms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import EQUAL, UNMATCHED, Frontier, Role, module_key
from anchorlib.diagnosis.pairing import Table
from anchorlib.diagnosis.sizes import (
    CONVOLUTION,
    MATMUL,
    Geometry,
    Measure,
    ReferenceSum,
    Task,
    convolutions,
    geometry_of,
    plain_sums,
    products,
    read,
    shifted,
)
from anchorlib.errors import StoreError

__all__ = ["Resummation", "Resummations"]

Array = np.ndarray[Any, Any]
WORK = 1 << 32
"""Multiplications that one comparison spends on all of its resummations: a second or two."""
MOST_ELEMENTS = 1 << 20
"""The most elements of an operand that is read, which bounds memory: the operand is held in
float64, and once more squared."""
MOST_OPERANDS = 6
UNKNOWN_TERMS = 2.0
"""A sum of unknown terms may round by so many eps times the root of the number of terms. Adding
them up rounds by half of that root, and by four times as much where the terms cancel, as behind
batch norms (1.8 times the root was seen for 4,096 terms)."""
CLEARLY = 1.1
"""From this ratio of the runs' distances from float64 on, one run is called nearer to float64."""


class Resummation(NamedTuple):
    """What follows from computing a record once more.

    rounding: whether rounding explains the difference. note: the finding in words.
    """

    rounding: bool
    note: str


class Resummations:
    """Computes records of one comparison once more, until WORK multiplications are spent."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self._work = WORK

    def of(self, row: int, row_b: int, measure: Measure, eps: float) -> Resummation | None:
        """Return whether rounding explains a difference, by computing the record once more.

        The record's sum is computed in float64; where that is not possible, the norms of its
        operands are used. None where neither decides, and for a record that is no sum.
        row, row_b: the record's rows in A and in B. measure: how far these are apart.
        eps: the eps of the precision in which the record was computed.
        """
        a = self._frontier.alignment.a
        summed = len(a.shapes[a.shape[row]]) == 1
        ops = self._frontier.ancestry(row).ops
        if not (summed or any(MATMUL.search(op) or CONVOLUTION.search(op) for op in ops)):
            return None
        operands = self._operands(row)
        return self._added_up(row, row_b, operands, eps) or self._bounded(
            row, operands, measure, eps
        )

    def _operands(self, row: int) -> list[int]:
        """Return A's rows that may be a row's operands, parents first, then inputs of its pass.

        Only records that are equal in both runs, or that A alone has, are taken; at most
        MOST_OPERANDS of them.
        """
        front = self._frontier
        a, block = front.alignment.a, int(front.block_of[row])
        rows = front.blocks.rows_of(block)
        role = front.layouts[int(front.blocks.layout[block])].role
        before = (a.pass_index[rows] == a.pass_index[row]) & (a.order[rows] < a.order[row])
        given = [rows[before & (role == one)].tolist() for one in (Role.INPUT, Role.LOOSE)]
        every = [*front.parents(row, saved=True), *given[0], *given[1]]
        return [
            one
            for one in dict.fromkeys(every)
            if one != row
            and self._shape(one)
            and front.status[one] in (EQUAL, UNMATCHED)
            and dtypes.dtype(a.dtypes[a.dtype[one]]).family == "float"
        ][:MOST_OPERANDS]

    def _added_up(
        self, row: int, row_b: int, operands: list[int], eps: float
    ) -> Resummation | None:
        """Return the finding from the operands' values in float64; None where no sum fits a run.

        Every sum that the operands allow is tried until one fits. Each sum that is computed takes
        from the work that is left; sums that would exceed it are not tried.
        """
        alignment = self._frontier.alignment
        a, b = alignment.a, alignment.b
        if not self._readable(a, row) or not self._readable(b, row_b):
            return None
        try:
            values = {
                operand: _values(a, operand) for operand in operands if self._readable(a, operand)
            }
            runs = _values(a, row), _values(b, row_b)
        except StoreError:
            return None
        if runs[0].shape != runs[1].shape or a.scale[row] != b.scale[row_b]:
            return None
        for task in self._tasks(row, values):
            if task.work > self._work:
                continue
            self._work -= task.work
            truth = task.compute()
            if self._after_backward(row):
                truth = _multiplied(truth, runs[0])
            if resummation := _finding(truth, runs, eps):
                return resummation
        return None

    def _after_backward(self, row: int) -> bool:
        """Return whether a row is a gradient as an optimizer found it, perhaps clipped."""
        return self._kind(row) == "grad" and self._frontier.role[row] == Role.OPTIMIZER

    def _readable(self, table: Table, row: int) -> bool:
        real = dtypes.dtype(table.dtypes[table.dtype[row]]).family != "complex"
        return bool(table.kept[row] and real and table.figures["numel"][row] <= MOST_ELEMENTS)

    def _tasks(self, row: int, values: dict[int, Array]) -> Iterator[Task]:
        """Yield the sums that may make the record of a row: those with its shape.

        They are matrix products, plain sums over axes and convolutions of the operands.
        values: row of an operand in A -> its values.
        """
        shape, gradients = self._shape(row), self._gradients(values)
        if self._kind(row) == "value":
            biases = [value for value in values.values() if value.shape == shape[-1:]]
            for first, second in itertools.permutations(values, 2):
                for task in products(values[first], values[second], shape):
                    yield from (shifted(task, bias) for bias in biases)
                    yield task
            return
        for first in gradients:
            yield from plain_sums(values[first], shape)
        for first, second in itertools.product(gradients, values):
            if second in gradients:
                continue
            yield from products(values[first], values[second], shape)
            yield from products(values[second], values[first], shape)
            yield from convolutions(values[second], values[first], shape, self._geometry(row))

    def _bounded(
        self, row: int, operands: list[int], measure: Measure, eps: float
    ) -> Resummation | None:
        """Return the finding from norms alone for a weight's or bias's gradient.

        None where the norms do not show that rounding explains the difference. A weight's gradient
        sums n terms t = x·g, where x is the input and g the gradient of the result:
        ‖t‖ ≤ about ‖x‖·‖g‖ / √n (Cauchy and Schwarz).
        """
        shape, gradients = self._shape(row), self._gradients(operands)
        if self._kind(row) == "value" or len(gradients) != 1 or not measure.norm:
            return None
        if len(shape) < 2:
            sums = self._kind(row) in ("grad", "pass_grad") and self._frontier.ancestry(row).ops
            return self._bounded_sum(shape, gradients[0], measure, eps) if sums else None
        norm, own = self._frontier.alignment.a.figures["l2"], self._shape(gradients[0])
        others = [operand for operand in operands if operand not in gradients]
        if not any(_pairing(self._shape(one), own, shape)[0] for one in others):
            return _half_known(own, shape, measure, eps)
        for one in others:
            terms, times = _pairing(self._shape(one), own, shape)
            if not terms:
                continue
            size = math.sqrt(times) * float(norm[one]) * float(norm[gradients[0]])
            limit = size / measure.norm
            if eps > 2.0**-23:
                limit *= 2.0**-23 / eps + 1 / math.sqrt(terms)
            if measure.error_eps * measure.eps <= limit * eps:
                return Resummation(True, f"sums of {terms:,} terms round by {figure(limit)} eps")
        return None

    def _bounded_sum(
        self, shape: tuple[int, ...], gradient: int, measure: Measure, eps: float
    ) -> Resummation | None:
        """Return the finding from norms for a bias's gradient, a sum over axes of `gradient`.

        None where the norms do not show that rounding explains the difference. shape: the bias's.
        gradient: A's row of the gradient of the result.
        """
        own = self._shape(gradient)
        if not shape or shape[0] not in own or not shape[0] or eps > 2.0**-23:
            return None
        terms = math.prod(own) // shape[0]
        norm = float(self._frontier.alignment.a.figures["l2"][gradient])
        limit = 0.5 * math.sqrt(terms) * max(norm / measure.norm, 1.0)
        if measure.error_eps * measure.eps > limit * eps:
            return None
        return Resummation(True, f"sums of {terms:,} terms round by {figure(limit)} eps")

    def _gradients(self, operands: Iterable[int]) -> list[int]:
        return [operand for operand in operands if self._kind(operand) == "grad"]

    def _kind(self, row: int) -> str:
        a = self._frontier.alignment.a
        kind: str = a.tensors[a.tensor[row]].kind
        return kind

    def _shape(self, row: int) -> tuple[int, ...]:
        a = self._frontier.alignment.a
        shape: tuple[int, ...] = a.shapes[a.shape[row]]
        return shape

    def _geometry(self, row: int) -> Geometry | None:
        """Return stride, padding and dilation of the convolution whose weight has this gradient.

        They are read from A's header; None where it does not state them. row: the weight's
        gradient.
        """
        a = self._frontier.alignment.a
        tensor = a.tensors[a.tensor[row]]
        header = a.header.get(tensor.rank, {})
        text = header.get(module_key(tensor.name.rpartition(".")[0]))
        return geometry_of(text, len(self._shape(row)) - 2)


def _values(table: Table, row: int) -> Array:
    shape = table.shapes[table.shape[row]]
    return read(table, row).astype(np.float64).reshape(shape)


def _multiplied(truth: ReferenceSum, run: Array) -> ReferenceSum:
    """Return `truth` times the factor by which clipping, unscaling or averaging multiplied A's sum.

    B is measured from this product, too: a different factor in B is no rounding. truth: the sum
    that backward made. run: A's record, from which the factor follows.
    """
    norm = float(np.square(truth.total).sum())
    factor = (
        float((truth.total * run).sum()) / norm if norm and run.shape == truth.total.shape else 1
    )
    return truth._replace(total=truth.total * factor, spread=truth.spread * abs(factor))


def _finding(truth: ReferenceSum, runs: tuple[Array, Array], eps: float) -> Resummation | None:
    """Return the finding from a sum in float64 for two runs; None where neither computed that sum.

    truth: the sum. runs: A's and B's record. eps: that of the precision in which the two were
    computed.
    """
    with np.errstate(all="ignore"):
        errors = [float(np.linalg.norm(run - truth.total)) for run in runs]
    limit, norm = truth.rounding(eps), float(np.linalg.norm(truth.total))
    if not norm or not min(errors) <= limit:
        return None
    first, second = (error / norm / eps for error in errors)
    least, most = min(first, second), max(first, second)
    near = f"both are {figure(most)} eps from float64"
    if most > CLEARLY * least:
        which = "A" if first < second else "B"
        near = f"{which} is nearer to float64: {figure(least)} against {figure(most)} eps"
    if max(errors) > limit:
        return Resummation(False, near)
    allowed = f"sums of {truth.terms:,} terms round by {figure(limit / norm / eps)} eps"
    return Resummation(True, f"{allowed}; {near}")


def _half_known(
    gradient: tuple[int, ...], shape: tuple[int, ...], measure: Measure, eps: float
) -> Resummation | None:
    """Return the finding for a weight's gradient of which one operand was not recorded; else None.

    The terms are not known, but their number is; they are assumed to cancel to some degree. None
    where this does not explain the difference as rounding, and in formats coarser than float32.
    gradient: the shape of the gradient of the result, the known operand. shape: the weight's.
    """
    if not shape[0] or eps > 2.0**-23:
        return None
    axis = 1 if len(shape) > 2 else len(gradient) - 1
    if gradient[axis : axis + 1] != shape[:1]:
        return None
    terms = math.prod(gradient) // shape[0]
    limit = UNKNOWN_TERMS * math.sqrt(terms)
    if measure.error_eps * measure.eps > limit * eps:
        return None
    why = "what it multiplies was not recorded"
    return Resummation(True, f"sums of {terms:,} terms may round by {figure(limit)} eps; {why}")


def _pairing(
    x: tuple[int, ...], gradient: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, float]:
    """Return how many terms a weight's gradient sums, and how often it uses each input element.

    (0, 0.0) where no operation has these three shapes.
    x, gradient, shape: the shapes of the operation's input, of the gradient of its result, and of
    its weight.
    """
    if len(shape) == 2:
        fit = x[-1:] == shape[1:] and gradient[-1:] == shape[:1] and x[:-1] == gradient[:-1]
        return (math.prod(x[:-1]), 1.0) if fit else (0, 0.0)
    if not len(x) == len(gradient) == len(shape) or x[:1] != gradient[:1]:
        return 0, 0.0
    if gradient[1] != shape[0] or not shape[1] or x[1] % shape[1]:
        return 0, 0.0
    made, given = math.prod(gradient[2:]), max(math.prod(x[2:]), 1)
    return gradient[0] * made, math.prod(shape[2:]) * made / given
