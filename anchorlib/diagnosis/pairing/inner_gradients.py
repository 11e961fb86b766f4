"""Gradients that a program makes inside its forward, as for a residual or a penalty on gradients.

    slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    loss = (slope - wanted).square().mean()
    loss.backward()

A gradient counts as made inside a forward if the last thing that its rank recorded before it, of
all values and gradients of losses, is a value. The loss is computed from such gradients, so that a
difference between them also shows in the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["inner_gradients"]

Array = np.ndarray[Any, Any]


def inner_gradients(table: Table, of_losses: Array | None = None) -> Array:
    """Return for each row whether it is a gradient that was made inside a forward.

    of_losses: a mask of the rows that are gradients of losses; None: the gradients of all single
    numbers count as such. A caller gives the mask where a program has inner loops, as of
    meta-learning: the loss of an inner loop has a gradient that is itself made inside a forward.
    Where no gradient of a loss is recorded, the result is False for all rows.
    """
    gradients = table.of_kind("grad", "pass_grad")
    losses = table.of_kind("grad") & (table.figures["numel"] == 1)
    losses = losses if of_losses is None else of_losses
    inner = np.zeros(len(gradients), bool)
    if not losses.any():
        return inner
    order = np.lexsort((table.order, table.rank))
    turns = np.flatnonzero((losses | table.of_kind("value"))[order])
    last = np.searchsorted(turns, np.arange(len(order)), "right") - 1
    inner[order] = (last >= 0) & ~losses[order[turns[np.maximum(last, 0)]]]
    return inner & gradients
