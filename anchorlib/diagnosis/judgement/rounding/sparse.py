"""Sparse gradients that hold the same numbers, stored otherwise.

Where the sums at all indices are the same in both runs, or differ as sums of the same terms in
another order do, the two records say nothing of the training: coalescing does so, and a compiler
that adds up the gradients of two lookups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.rounding.severity import TOLERANCE
from anchorlib.diagnosis.judgement.sparse_sums import INDICES, row_of_values, summed
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.errors import StoreError

__all__ = ["stored_otherwise"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23


def stored_otherwise(alignment: Alignment, pairs: Array) -> Array:
    """Which of these pairs are parts of sparse tensors that differ in their storage alone."""
    a = alignment.a
    found: list[int] = []
    for pair, row in zip(pairs.tolist(), alignment.a_row[pairs].tolist(), strict=True):
        if not a.tensors[a.tensor[row]].name.endswith(INDICES):
            continue
        beside = row_of_values(a, row)
        if beside is not None and _is_same(alignment, pair):
            found += [pair, int(np.searchsorted(alignment.a_row, beside))]
    return np.isin(pairs, found)


def _is_same(alignment: Alignment, pair: int) -> bool:
    try:
        one = summed(alignment.a, int(alignment.a_row[pair]))
        two = summed(alignment.b, int(alignment.b_row[pair]))
    except StoreError:
        return False
    if one is None or two is None or not np.array_equal(one.indices, two.indices):
        return False
    if one.sums.shape != two.sums.shape:
        return False
    apart = float(np.linalg.norm(one.sums - two.sums))
    return apart <= TOLERANCE * EPS32 * float(np.linalg.norm(one.sizes))
