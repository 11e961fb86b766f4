"""How far a logarithm rounds where it is near zero.

    log(x·(1 + δ)) = log x + δ

What is off by a share of itself makes its logarithm off by this number, whatever the logarithm is.
Near x = 1 the logarithm is near 0 and may consist of rounding alone, as that of the determinant of
an orthogonal matrix: an invertible layer that was just made. So a logarithm rounds as a number of
size 1 does, times the factors by which it was multiplied afterwards.
"""

from __future__ import annotations

import math
import re

from anchorlib.diagnosis.causes import Frontier
from anchorlib.record import Edges

__all__ = ["size_of_logarithms"]

LOGARITHM = re.compile(r"^(Log|Log2|Log10|LinalgSlogdet)Backward\d*$")
FACTOR = re.compile(r"^(Mul|Div)Backward\d*$")
NUMBER = re.compile(r"\bother=(?:tensor\()?(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)")
KEEPING = re.compile(
    r"^(Neg|Sum|Mean|View|UnsafeView|Reshape|Unsqueeze|Squeeze|Permute|Transpose|Clone|ToCopy)Backward\d*$"
)
"""Operations behind a logarithm that keep the size of its elements' errors, or add them up."""


def size_of_logarithms(frontier: Frontier, row: int) -> float:
    """The norm of a record of logarithms of size 1; 0.0 where a row is anything else.

    Between the logarithm and the record there may be only operations that keep the size of an
    error, and factors that the statement holds.
    """
    a = frontier.alignment.a
    own = a.tensors[a.tensor[row]]
    if own.kind != "value" or not any(map(LOGARITHM.match, frontier.ancestry(row).ops)):
        return 0.0
    phase, call = a.phases[a.phase[row]], int(a.call[row])
    for edges in a.edges.get(own.rank, ()):
        if (edges.name, edges.phase, edges.call) == (own.name, phase, call) and edges.ops:
            return _factor(edges) * math.sqrt(int(a.figures["numel"][row]))
    return 0.0


def _factor(edges: Edges) -> float:
    """By what a logarithm was multiplied before it became the record; 0.0 where none became it."""
    factor, place = 1.0, 0
    arguments = edges.arguments or ("",) * len(edges.ops)
    for _ in edges.ops:
        if place >= min(len(edges.ops), len(edges.inputs), len(arguments)):
            return 0.0  # stores may come from anyone
        op = edges.ops[place]
        if LOGARITHM.match(op):
            return factor
        before = [source for source in edges.inputs[place] if source]
        if len(before) != 1 or before[0] < 0:
            return 0.0
        if FACTOR.match(op):
            number = NUMBER.search(arguments[place])
            by = abs(float(number[1])) if number else 0.0
            if not by:
                return 0.0
            factor = factor * by if op.startswith("Mul") else factor / by
        elif not KEEPING.match(op):
            return 0.0
        place = before[0]
    return 0.0
