"""By what factor B's record is a multiple of A's, if it is one."""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.clauses import ValueClause
from anchorlib.diagnosis.sizes import Measure

__all__ = ["factor_of", "multiple"]

PARALLEL = 1e-10  # largest cosine distance of a tensor and its multiple, rounded to float32
CLEAR = 1e-3  # relative difference from which two factors differ
FEW = 5  # elements: a smaller tensor is a multiple of another by chance
MOST_PARTS = 4096  # parts that a step may be split into
WHOLE = 1e-5  # distance from a whole number that rounding leaves


def multiple(frontier: Frontier, row: int, measure: Measure) -> list[str]:
    """Return the clause that B's record is a multiple of A's, with the factor; else [].

    row: a row of A. measure: how far the two records are apart.
    """
    if factor := factor_of(measure):
        return [ValueClause(f"B is {factor:.6g} times A{_scaled(frontier, row, factor)}")]
    a = frontier.alignment.a
    if a.tensors[a.tensor[row]].kind == "grad" and (factor := _whole_factor(measure)):
        values_of = f"{measure.value_a:.6g} | {measure.value_b:.6g}"
        return [ValueClause(f"B is {factor:.6g} times A: {values_of}")]
    return []


def _scaled(frontier: Frontier, row: int, factor: float) -> str:
    """Return words if a factor is, or undoes, the loss scale of other records of the step; or "".

    row: a row of A, whose own loss scale does not count.
    """
    a = frontier.alignment.a
    which = (a.step == a.step[row]) & (a.scale != a.scale[row])
    scales = np.unique(a.scale[which])
    stated = scales[(scales > 0) & (scales != 1)]
    if not len(stated):
        return ""
    near = np.abs(np.stack([stated * factor, stated / factor]) - 1) < CLEAR
    return f": 1 to the loss scale of {stated[near.any(axis=0)][0]:.6g}" if near.any() else ""


def factor_of(measure: Measure) -> float:
    """Return the factor by which B is a multiple of A; 0.0 where B is no multiple.

    A factor helps people, who can look for it in their program. The answer is 0.0 too for a factor
    near 1, and for tensors of a few elements: any number is a multiple of any other number, and so
    are numbers whose sum is fixed, such as the gradient of two logits.
    """
    if measure.numel < FEW or not (measure.cosine_distance <= PARALLEL and measure.value_a):
        return 0.0
    factor = measure.value_b / measure.value_a
    apart = measure.error_eps * measure.eps
    return factor if apart > CLEAR and abs(abs(factor - 1) / apart - 1) < CLEAR else 0.0


def _whole_factor(measure: Measure) -> float:
    """Return B / A for a gradient of one number, if one is a whole multiple of the other.

    0.0 otherwise, and for a factor near 1 or above MOST_PARTS. Backward begins with 1 over the
    number by which the loss is divided: the number of micro-batches, or of ranks.
    """
    if measure.numel != 1 or not (measure.value_a and measure.value_b):
        return 0.0
    factor = measure.value_b / measure.value_a
    times = max(factor, 1 / factor)
    return factor if 1.5 < times < MOST_PARTS and abs(times - round(times)) < WHOLE else 0.0
