"""Values that differ only in elements on which no loss depends, such as elements at padded places.

The gradient of these elements is zero in both runs. That excuses the difference only where it holds
for everything that differs: no gradient, update or state of an optimizer may differ, and no value
without a gradient, from which an evaluation or a buffer could be computed.
"""

from __future__ import annotations

from anchorlib.diagnosis.judgement.series import site_of, values
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["unused"]

MOST = 512  # records whose values and gradients are read
MOST_ELEMENTS = 1 << 22


def unused(alignment: Alignment, measures: Measures) -> bool:
    """Return whether all measured pairs differ only in elements on which no loss depends.

    False without pairs, where a pair is no value or has no equal gradient, and where values are not
    known or too many.
    """
    a = alignment.a
    rows = alignment.a_row[measures.pair]
    others = ~a.of_kind("value")[rows]
    few = 0 < len(rows) <= MOST and not alignment.merged and alignment.reordered is None
    if not few or others.any() or (a.figures["numel"][rows] > MOST_ELEMENTS).any():
        return False
    gradients = {
        site_of(a, row): row
        for row in alignment.a_row[alignment.equal].tolist()
        if a.tensors[a.tensor[row]].kind == "grad"
    }
    for row, pair in zip(rows.tolist(), measures.pair.tolist(), strict=True):
        gradient, partner = gradients.get(site_of(a, row)), int(alignment.b_row[pair])
        if gradient is None or not _is_unused(a, alignment.b, row, partner, gradient):
            return False
    return True


def _is_unused(a: Table, b: Table, row: int, partner: int, gradient: int) -> bool:
    try:
        sides = values(a, row), values(b, partner), values(a, gradient)
    except StoreError:
        return False
    value_a, value_b, slope = sides
    if (
        value_a is None
        or value_b is None
        or slope is None
        or not len(value_a) == len(value_b) == len(slope)
    ):
        return False
    return not (slope[value_a != value_b] != 0).any()
