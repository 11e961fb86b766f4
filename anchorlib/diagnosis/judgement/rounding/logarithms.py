"""How far a logarithm rounds where it is near zero.

    log(x·(1 + δ)) = log x + δ

Where x is off by the share δ of itself, its logarithm is off by δ, however small the logarithm is.
Near x = 1 the logarithm is near 0 and may consist of rounding alone. An example is the determinant
of an orthogonal matrix, as of an invertible layer that was just made. So a logarithm rounds as a
number of size 1 does, times the factors by which it was multiplied afterwards. This is assumed of a
record even if only one run takes a logarithm: the other run may compute the record as a sum of
stored logarithms. The logarithm of the determinant of a matrix of order n is the sum of the
logarithms of n pivots. Each of these logarithms rounds as a number of size 1 does, and their sum as
a number of size √n.

    margin = (log p − log r) − (log q − log s)

A difference of logarithms rounds as its terms do, however much of them cancels: the terms were
rounded before they were subtracted. Examples are the log-probabilities of a model and of its
copy.
"""

from __future__ import annotations

import math
import re

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Table, opaque, with_operations
from anchorlib.record import Edges

__all__ = ["size_of_logarithms"]

LOGARITHM = re.compile(
    r"^(Log|Log2|Log10|LogSoftmax|Logsumexp|LinalgSlogdet|BinaryCrossEntropyWithLogits)Backward\d*$"
)
"""Operations that end in a logarithm. The last one is (1 − t)·x − log σ(x), which cancels where the
model is sure: it rounds as its logits do."""
FACTOR = re.compile(r"^(Mul|Div)Backward\d*$")
NUMBER = re.compile(r"\bother=(?:tensor\()?(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)")
KEEPING = re.compile(
    r"^(Neg|Sum|Mean|View|UnsafeView|Reshape|Unsqueeze|Squeeze|Expand|Permute|Transpose|Clone|ToCopy"
    r"|Select|Slice|Gather|Index|IndexSelect|NllLoss|NllLoss2D)Backward\d*$"
)
"""Operations behind a logarithm that keep the size of its elements' errors, or add them up."""
ADDING = re.compile(r"^(Add|Sub|Rsub)Backward\d*$")
WHOLE = re.compile(r"\balpha=1(?:\.0)?(?:,|$)")


def size_of_logarithms(frontier: Frontier, row: int, row_b: int) -> float:
    """Return the norm that a record of logarithms would have if each logarithm were of size 1.

    The larger of both runs' norms is returned; 0.0 where neither record is made of logarithms.
    Between the logarithm and the record there may be only operations that keep the size of an
    error, and multiplications by numbers that the record's edges (`anchorlib.record.Edges`) state:
    the norm is multiplied by these numbers.
    row, row_b: the record's rows in A and in B.
    """
    sides = ((frontier.alignment.a, row), (frontier.alignment.b, row_b))
    return max(_size(table, row_of_run) for table, row_of_run in sides)


def _size(table: Table, row: int) -> float:
    """Return the norm that one run's record would have if its logarithms were of size 1.

    0.0 where the record is not made of logarithms.
    """
    own = table.tensors[table.tensor[row]]
    if own.kind != "value":
        return 0.0
    at = (own.name, table.phases[table.phase[row]], int(table.call[row]))
    for edges in table.edges.get(own.rank, ()):
        if (edges.name, edges.phase, edges.call) != at:
            continue
        named = with_operations(table, own.rank, own.name) if opaque(edges.ops) else edges
        if named is not None and any(map(LOGARITHM.match, named.ops)):
            size = math.sqrt(int(table.figures["numel"][row]))
            return _factor(named) * size * math.sqrt(_order_of_determinant(table, named))
    return 0.0


def _order_of_determinant(table: Table, edges: Edges) -> int:
    """Return how many logarithms a determinant's logarithm sums: the order of its matrix.

    1 for other logarithms, and where no record shows the matrix. The matrix is taken to be as large
    as the largest square parent. edges: how the record of the logarithm was computed.
    """
    if not any(op.startswith("LinalgSlogdet") for op in edges.ops):
        return 1
    parents = {parent.name for parent in edges.parents}
    own = table.where(lambda tensor: tensor.name in parents)
    shapes = (table.shapes[at] for at in np.unique(table.shape[own]))
    return max((s[-1] for s in shapes if len(s) > 1 and s[-1] == s[-2]), default=1)


def _factor(edges: Edges) -> float:
    """Return the number by which a logarithm was multiplied before it became the record.

    0.0 where no logarithm became the record. edges: how the record was computed.

    Where several logarithms were added or subtracted, the largest of their factors is returned: the
    record rounds at least as much as each of its terms.
    """
    count = min(len(edges.ops), len(edges.inputs), len(edges.arguments or edges.ops))
    arguments = edges.arguments or ("",) * count
    largest, looked_at = 0.0, {0: 1.0}
    for place in range(count):  # backward runs an operation behind all that its result went into
        factor, op = looked_at.get(place, 0.0), edges.ops[place]
        if factor and LOGARITHM.match(op):
            largest = max(largest, factor)
            continue
        before = [source for source in edges.inputs[place] if source]
        if FACTOR.match(op):
            number = NUMBER.search(arguments[place])
            by = abs(float(number[1])) if number else 0.0
            factor = 0.0 if not by else factor * by if op.startswith("Mul") else factor / by
        elif not KEEPING.match(op) and not (ADDING.match(op) and WHOLE.search(arguments[place])):
            continue
        if not factor or (len(before) != 1 and not ADDING.match(op)):
            continue
        for source in before:
            looked_at[source] = max(factor, looked_at.get(source, 0.0))
    return largest
