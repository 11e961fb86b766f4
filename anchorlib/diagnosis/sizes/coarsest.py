"""The coarsest format in which a step computed, up to each of its records that differ.

    bfloat16   expert(x[chosen])     bfloat16   expert(x)
    float32    expert.weight@grad    float32    expert.weight@grad

A format is an element type, given by its eps. A float32 record that was computed from bfloat16
products differs by the rounding of these. So a record has the coarsest format of all differing
records of its step up to itself; equal records hand on no rounding, and do not count. Of the two
records of a pair the finer format counts: low precision in one run alone may be the very fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes.autocast import autocast_eps
from anchorlib.diagnosis.sizes.measures import Measures
from anchorlib.diagnosis.sizes.precision import observed_eps

__all__ = ["coarsest_formats"]

Array = np.ndarray[Any, Any]


def coarsest_formats(alignment: Alignment, measures: Measures, at: Array) -> Array:
    """Return for each of some measured pairs the eps of the coarsest format up to its record.

    at: the indices into `measures` of the differing pairs of one step. The formats of a record are
    its element type, and autocast's type where its operations cast and multiply; those of all
    records of `at` before it count too.
    """
    pairs = measures.pair[at]
    rows, rows_b = alignment.a_row[pairs], alignment.b_row[pairs]
    own = np.fmin(_formats(alignment.a, rows), _formats(alignment.b, rows_b))
    order = np.argsort(alignment.a.order[rows], kind="stable")
    coarsest = np.empty(len(at))
    coarsest[order] = np.maximum.accumulate(own[order])
    return coarsest


def _formats(table: Table, rows: Array) -> Array:
    """Return the eps of the dtype in which each row was computed; 0 for integers.

    It is the coarser of the row's dtype and, where its operations cast and multiply, autocast's.
    """
    eps: Array = np.nan_to_num(observed_eps(table, rows), nan=0.0)
    cast = {
        (rank, edges.name): autocast_eps(table.header.get(rank, {}), edges.ops)
        for rank, statements in table.edges.items()
        for edges in statements
    }
    tensors = [table.tensors[number] for number in table.tensor[rows].tolist()]
    through: Array = np.array([cast.get((one.rank, one.name), 0.0) for one in tensors])
    return np.fmax(eps, through)
