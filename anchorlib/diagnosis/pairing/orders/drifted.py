"""Samples in another order in passes where rounding has moved all that tells it.

A model may deal its samples itself, as the edges of a graph: nothing that a pass is given has their
order. What it computes of them is equal in the first pass, and nearly equal once the parameters of
the two runs have drifted apart by rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.orders.order import Order, Orders, call_of, pass_of, wide
from anchorlib.diagnosis.pairing.tables import whole
from anchorlib.errors import StoreError

__all__ = ["drifted"]

NEAR = 1e-3
"""Of the spread of a record: rows that differ by rounding's drift are nearer; rows of other data,
each paired with the nearest in rank, are not."""
MOST_SAMPLES = 1 << 16
MOST_ELEMENTS = 1 << 22


def drifted(
    alignment: Alignment, telling: Collection[tuple[int, int]], told: Orders
) -> Iterator[tuple[Hashable, Order]]:
    """The orders of further passes, by the values that told an order in another pass.

    telling: the tensor and the call (`call_of`) of each of these values.
    """
    a = alignment.a
    tensors = [tensor for tensor, _ in telling]
    pairs = alignment.differing
    for pair in pairs[np.isin(a.tensor[alignment.a_row[pairs]], tensors)].tolist():
        row = int(alignment.a_row[pair])
        if pass_of(a, row) not in told and call_of(a, row) in telling:
            order = _near_order(alignment, pair)
            if order is not None:
                yield pass_of(a, row), order


def _near_order(alignment: Alignment, pair: int) -> Order | None:
    """The place in B of each of A's rows along the first axis, where rows are nearly equal."""
    a, b = alignment.a, alignment.b
    row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    shape = a.shapes[a.shape[row_a]]
    kind = a.dtypes[a.dtype[row_a]]
    same = shape == b.shapes[b.shape[row_b]] and kind == b.dtypes[b.dtype[row_b]]
    count = shape[0] if shape else 0
    elements = int(a.figures["numel"][row_a])
    kept = a.kept[row_a] and b.kept[row_b]
    if not (same and kept and 1 < count <= MOST_SAMPLES and elements <= MOST_ELEMENTS):
        return None
    try:
        sides = (wide(whole(a, row_a), kind), wide(whole(b, row_b), kind))
    except StoreError:
        return None
    one, two = (side.reshape(count, -1) for side in sides)
    unknown = Order(np.arange(count), np.zeros(count, np.int64))
    order = unknown.settled(one, two)
    apart = np.linalg.norm(two[order.places] - one)
    near = apart <= NEAR * np.linalg.norm(one - one.mean(axis=0))
    return order if near and apart < np.linalg.norm(two - one) else None
