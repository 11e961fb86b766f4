"""Elements of a parameter whose gradient is rounding alone, and what an optimizer makes of them."""

from __future__ import annotations

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.sizes import steady_elements_apart

__all__ = ["steady_error"]


def steady_error(frontier: Frontier, row: int, row_b: int) -> float:
    """Return the relative error of an updated parameter in the elements whose gradients agree.

    The elements whose gradients do not agree are left out: there an optimizer may have made a large
    update of a gradient that is rounding alone. nan where the parameter's gradient was not
    recorded, or values of the parameter or the gradient were not kept; see `steady_elements_apart`.
    row, row_b: the rows of the parameter after the step, in A's table and in B's.
    """
    a = frontier.alignment.a
    gradients = [
        parent for parent in frontier.parents(row) if a.tensors[a.tensor[parent]].kind == "grad"
    ]
    if not gradients:
        return float("nan")
    return steady_elements_apart(frontier.alignment, gradients[-1], row, row_b)
