"""Records whose rows stand in another order because code reordered them, not the batch.

    rows = torch.where(mine)[0]             rows = torch.where(mine)[0].flip(0)
    y = expert(x[rows])                     y = expert(x[rows])

A layer that treats each row by itself gives equal rows in whichever order it gets them.
"""

from __future__ import annotations

from anchorlib.diagnosis.pairing import Alignment, near_order
from anchorlib.diagnosis.sizes import Measure

__all__ = ["in_another_order"]

FAR = 1e-2
"""The least relative error of a record in another order: rounding makes less."""
NEAR = 1e-3
"""The share of the norm and of the extremes by which the same rows in another order may differ."""


def in_another_order(alignment: Alignment, pair: int, measure: Measure) -> bool:
    """Return whether B's record holds the rows of A's, but for rounding, in another order.

    Rows lie along the first axis. Norms and extremes, which do not depend on the order, are
    compared first, since no values need be read for that. False for records that are nearly equal
    without any reordering.
    pair: its index in `alignment`. measure: how far its two records are apart.
    """
    a, b = alignment.a, alignment.b
    row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    if not measure.error_eps * measure.eps > FAR:
        return False
    norm = float(a.figures["l2"][row_a])
    for name in ("l2", "min", "max"):
        if abs(float(a.figures[name][row_a]) - float(b.figures[name][row_b])) > NEAR * norm:
            return False
    return near_order(alignment, pair) is not None
