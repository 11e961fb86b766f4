"""By how much the terms that a parameter's gradient sums are larger than their sum.

A sum rounds as its terms do, however much of them cancels. Before a batch norm the gradient of a
bias cancels to nothing, and so does the part of a convolution's gradient that a constant
background makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.sizes import CONVOLUTION, MATMUL, unrounding

__all__ = ["cancelling"]

Array = np.ndarray[Any, Any]
SUMMED = ("grad", "pass_grad")


def cancelling(first: FirstStep, rows: Array) -> Array:
    """Return, for each row, by how much a gradient's terms are larger than their sum; 1 or more.

    The factor is 1 for rows that are no gradient of a parameter, nor an optimizer's state of one,
    and where the terms are not known. rows: rows of A.
    """
    a = first.alignment.a
    totals = dict(_largest(first))
    times = np.ones(len(rows))
    for at, row in enumerate(rows.tolist()):
        name, kind, _, rank = a.tensors[a.tensor[row]]
        if not (kind in SUMMED or kind.startswith("opt.")) or name not in first.learnt:
            continue
        total = totals.get((name, rank, "pass_grad")) or totals.get((name, rank, "grad"), 0.0)
        if total:
            times[at] = max(1.0, _size_of_terms(first, row, totals) / total)
    return times


def _largest(first: FirstStep) -> Iterator[tuple[tuple[str, int, str], float]]:
    """Yield ((name, rank, kind), largest norm of its records) for each tensor of A in the step."""
    a = first.alignment.a
    for number, rows in first.rows_of[0].items():
        tensor = a.tensors[number]
        yield (tensor.name, tensor.rank, tensor.kind), float(a.figures["l2"][rows].max())


def _size_of_terms(first: FirstStep, row: int, norms: dict[tuple[str, int, str], float]) -> float:
    """Return the norm that the gradient of a row would have if its terms did not cancel; or 0.0.

    The gradient of a bias sums the gradient of its module's result over all other dimensions: the
    sizes of n terms add up to √n times their norm at most. The terms of a weight's gradient are
    products of that gradient and of the module's input. Their sizes are not known without their
    values, so that n terms are taken to add up to √n times their typical size.

    A single number s that multiplies or divides its module's input (a learnt temperature) has
    the gradient ±Σ g·y / s, with the module's result y and its gradient g, or Σ g·y where s is the
    logarithm of the factor. The sizes of these terms add up to ‖g‖·‖y‖ at most, over s.
    norms: (name, rank, kind) of each tensor -> the largest norm of its records in the step. The
    answer is 0.0 where a needed norm is missing.
    """
    a = first.alignment.a
    tensor, shape = a.tensors[a.tensor[row]], a.shapes[a.shape[row]]
    module = tensor.name.rpartition(".")[0]
    result = norms.get((module, tensor.rank, "grad"), 0.0)
    if not shape:
        number = norms.get((tensor.name, tensor.rank, "value"), 1.0)
        return result * norms.get((module, tensor.rank, "value"), 0.0) / max(1.0, number)
    if len(shape) == 1:
        return result * math.sqrt(_numel(first, module, "grad", tensor.rank) / shape[0])
    given = _multiplied(first, tensor.name, module, tensor.rank)
    numel = _numel(first, given, "value", tensor.rank) if given else 0
    if not numel:
        return 0.0
    reads = math.prod(shape[1:])  # of the input, for each element of the result
    return result * norms[given, tensor.rank, "value"] * math.sqrt(reads / numel)


def _numel(first: FirstStep, name: str, kind: str, rank: int) -> int:
    """Return how many elements the largest record of a tensor has in the step; 0 if it has none."""
    a = first.alignment.a
    return max(
        (
            int(a.figures["numel"][rows].max())
            for number, rows in first.rows_of[0].items()
            if a.tensors[number][:2] == (name, kind) and a.tensors[number].rank == rank
        ),
        default=0,
    )


def _multiplied(first: FirstStep, weight: str, module: str, rank: int) -> str:
    """Return the name of the one recorded value that a module multiplies by a weight; else ""."""
    for edges in first.alignment.a.edges.get(rank, ()):
        parents = {parent.name for parent in edges.parents if parent.call is not None}
        learnt = {parent.name for parent in edges.parents if parent.call is None}
        if edges.name != module or weight not in learnt:
            continue
        sums = [op for op in edges.ops if MATMUL.search(op) or CONVOLUTION.search(op)]
        others = tuple(op for op in edges.ops if op not in sums)
        moved = not others or unrounding(others, gradient=False, parents=1)
        if len(sums) == len(parents) == 1 and moved:
            return parents.pop()
    return ""
