"""Sparse gradients that hold equal numbers, stored differently.

Where the sums at all indices are equal in both runs, or differ as sums of equal terms in another
order do, the difference between the two records does not matter to the training. Coalescing makes
such differences, and so does a compiler that adds up the gradients of two lookups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.rounding.bounds import TOLERANCE
from anchorlib.diagnosis.judgement.sparse_sums import INDICES, row_of_values, summed
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.errors import StoreError

__all__ = ["stored_otherwise"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23


def stored_otherwise(alignment: Alignment, pairs: Array) -> Array:
    """Return for each of `pairs` whether it is of a sparse tensor that is only stored differently.

    The pairs of the tensor's indices and of its values are both True. pairs: indices into the
    alignment.
    """
    a = alignment.a
    of_stored: list[int] = []
    for pair, row in zip(pairs.tolist(), alignment.a_row[pairs].tolist(), strict=True):
        if not a.tensors[a.tensor[row]].name.endswith(INDICES):
            continue
        row_of_sums = row_of_values(a, row)
        if row_of_sums is not None and _is_same(alignment, pair):
            of_stored += [pair, int(np.searchsorted(alignment.a_row, row_of_sums))]
    return np.isin(pairs, of_stored)


def _is_same(alignment: Alignment, pair: int) -> bool:
    try:
        sums_a = summed(alignment.a, int(alignment.a_row[pair]))
        sums_b = summed(alignment.b, int(alignment.b_row[pair]))
    except StoreError:
        return False
    if sums_a is None or sums_b is None or not np.array_equal(sums_a.indices, sums_b.indices):
        return False
    if sums_a.sums.shape != sums_b.sums.shape:
        return False
    apart = float(np.linalg.norm(sums_a.sums - sums_b.sums))
    return apart <= TOLERANCE * EPS32 * float(np.linalg.norm(sums_a.sizes))
