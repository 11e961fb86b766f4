"""How far apart an updated parameter is in the two runs, in elements whose gradients agree.

Optimizers like Adam divide each element of a gradient by its own size. Where a gradient is zero but
for rounding, an element's update is a whole step in a direction that rounding chose. An example is
the bias of attention's keys, a third of `in_proj_bias`, on which the softmax does not depend: 1 eps
in that bias's gradient became 82,000 eps in the updated parameter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.sizes.whereabouts import read
from anchorlib.errors import StoreError

__all__ = ["steady_elements_apart"]

Array = np.ndarray[Any, Any]
STEADY = 2.0**-12
"""How far apart the two gradients of an element may be, relative to their size. In the updated
parameter such a difference is a small fraction of a step; leaps begin at a thousand eps of the
parameter."""


def steady_elements_apart(
    alignment: Alignment, gradient: int, row: int, row_b: int, alike: float = STEADY
) -> float:
    """Return ‖b − a‖₂ / ‖a‖₂ of an updated parameter, over the elements whose gradients agree.

    a and b are the parameter in A and in B. nan where the values of the parameter or of its
    gradient were not kept, or cannot be compared; 0.0 where the gradients agree in no element; inf
    where a is zero in these elements, and b is not.
    gradient: the row of the parameter's gradient in A's table.
    row, row_b: the rows of the parameter after the step, in A's table and in B's.
    alike: by how much the two runs' gradients of an element that agrees may differ, relative to the
    larger of the two.
    """
    a, b = alignment.a, alignment.b
    at = int(np.searchsorted(alignment.a_row, gradient))
    if at == len(alignment) or alignment.a_row[at] != gradient:
        return float("nan")
    pairs = ((gradient, int(alignment.b_row[at])), (row, row_b))
    if not all(a.kept[in_a] and b.kept[in_b] for in_a, in_b in pairs):
        return float("nan")
    try:
        (g_a, g_b), (p_a, p_b) = (
            (_widened(read(a, in_a)), _widened(read(b, in_b))) for in_a, in_b in pairs
        )
    except StoreError:
        return float("nan")
    if not g_a.shape == g_b.shape == p_a.shape == p_b.shape:
        return float("nan")
    return _relative(p_a, p_b, np.abs(g_b - g_a) <= alike * np.maximum(np.abs(g_a), np.abs(g_b)))


def _widened(values: Array) -> Array:
    """Return values in float64, or in complex128 if they are complex."""
    return values.astype(np.result_type(values.dtype, np.float64))


def _relative(a: Array, b: Array, of: Array) -> float:
    off, norm = float(np.linalg.norm((b - a)[of])), float(np.linalg.norm(a[of]))
    return off / norm if norm else float("inf") if off else 0.0
