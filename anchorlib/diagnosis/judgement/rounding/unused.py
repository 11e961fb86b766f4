"""Values that differ only in elements on which no loss depends, as what stands at padded places.

The gradient of these elements is zero in both runs. That counts only where no gradient, update or
optimizer's state differs anywhere: what one run alone computes from such an element would.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["unused"]

Array = np.ndarray[Any, Any]
Site = tuple[str, int, int, int, int, int]
MOST = 512  # records whose values and gradients are read
MOST_ELEMENTS = 1 << 22


def unused(alignment: Alignment, measures: Measures) -> Array:
    """For each measured pair, whether it differs in elements alone on which nothing depends."""
    a = alignment.a
    found = np.zeros(len(measures.pair), bool)
    rows = alignment.a_row[measures.pair]
    kinds = np.array([tensor.kind for tensor in a.tensors] or [""])[a.tensor[rows]]
    few = 0 < len(rows) <= MOST and not alignment.merged and alignment.reordered is None
    if not few or (kinds != "value").any() or (a.figures["numel"][rows] > MOST_ELEMENTS).any():
        return found
    gradients = {
        _site(a, row): row
        for row in alignment.a_row[alignment.equal].tolist()
        if a.tensors[a.tensor[row]].kind == "grad"
    }
    for at, row in enumerate(rows.tolist()):
        gradient = gradients.get(_site(a, row))
        partner = int(alignment.b_row[measures.pair[at]])
        if gradient is not None:
            found[at] = _is_unused(a, alignment.b, row, partner, gradient)
    return found


def _is_unused(a: Table, b: Table, row: int, partner: int, gradient: int) -> bool:
    try:
        sides = values(a, row), values(b, partner), values(a, gradient)
    except StoreError:
        return False
    one, two, slope = sides
    if one is None or two is None or slope is None or not len(one) == len(two) == len(slope):
        return False
    return not (slope[one != two] != 0).any()


def _site(table: Table, row: int) -> Site:
    """The coordinates that a value and its gradient have in common."""
    tensor = table.tensors[table.tensor[row]]
    return (
        tensor.name,
        tensor.rank,
        int(table.attempt[row]),
        int(table.step[row]),
        int(table.pass_index[row]),
        int(table.call[row]),
    )
