"""Gradients that a program makes inside its forward, as for a residual or a penalty on gradients.

    slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    loss = (slope - wanted).square().mean()
    loss.backward()

They come after a value, and before the gradient of a loss. What they are worth shows in the loss
that is computed from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["inner_gradients"]

Array = np.ndarray[Any, Any]


def inner_gradients(table: Table, of_losses: Array | None = None) -> Array:
    """Return for each row whether it is a gradient that was made inside a forward.

    of_losses: a mask of the gradients of losses; None for those of all single numbers. The loss of
    an inner loop, as of meta-learning, has a gradient that is itself made inside a forward. False
    for all rows without such a gradient.
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
