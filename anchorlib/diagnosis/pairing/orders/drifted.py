"""Samples in another order, in passes where rounding has changed every record that shows the order.

A model may make its samples itself, as the edges of a graph, so that no input of a pass has their
order. The records that it computes from the samples are equal in the first pass, and nearly equal
once the parameters of the two runs have drifted apart by rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.orders.order import Order, Orders, Pass, call_of, pass_of, wide
from anchorlib.diagnosis.pairing.tables import whole
from anchorlib.errors import StoreError

__all__ = ["drifted", "near_order"]

Array = np.ndarray[Any, Any]
NEAR = 1e-3
"""The share of a record's spread by which paired rows may differ. Rows that drifted apart by
rounding differ by less; rows of other data differ by more, even when they are paired by rank."""
NEAR_EPS = 4.0
"""The same, in eps of the record's dtype, for dtypes coarser than float32: an element that is
rounded otherwise is one eps apart."""
MOST_SAMPLES = 1 << 16
MOST_PAIRS = 1 << 20  # of rows whose distances are computed
MOST_ELEMENTS = 1 << 22


def drifted(
    alignment: Alignment, telling: Collection[tuple[int, int]], known: Orders
) -> Iterator[tuple[Pass, Order]]:
    """Yield the orders of further passes, read from rows that are only nearly equal in both runs.

    They are read from values (a tensor's records in one call) that gave the order of another pass.

    telling: (index in A's `tensors`, call) of each of these values. known: the orders found so far.
        The caller has to add each order that is yielded, so that no pass is told twice.
    """
    a = alignment.a
    tensors = [tensor for tensor, _ in telling]
    pairs = alignment.differing
    for pair in pairs[np.isin(a.tensor[alignment.a_row[pairs]], tensors)].tolist():
        row = int(alignment.a_row[pair])
        if call_of(a, row) not in telling:
            continue
        key, shape = pass_of(a, row), a.shapes[a.shape[row]]
        for axis in range(min(len(shape), 2)):
            if any(len(order.places) == shape[axis] for order in known.get(key, ())):
                break
            order = near_order(alignment, pair, axis)
            if order is not None:
                yield key, order
                break


def near_order(alignment: Alignment, pair: int, axis: int = 0) -> Order | None:
    """Return where B has each of A's rows along an axis, if the rows are nearly equal.

    None where the rows are not nearly equal or are at least as near in B's own order, and for
    records that are too large, of different shapes or dtypes, or without readable stored values.
    """
    a, b = alignment.a, alignment.b
    row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    shape = a.shapes[a.shape[row_a]]
    kind = a.dtypes[a.dtype[row_a]]
    of_one_form = shape == b.shapes[b.shape[row_b]] and kind == b.dtypes[b.dtype[row_b]]
    count = shape[axis] if shape else 0
    elements = int(a.figures["numel"][row_a])
    kept = a.kept[row_a] and b.kept[row_b]
    if not (of_one_form and kept and 1 < count <= MOST_SAMPLES and elements <= MOST_ELEMENTS):
        return None
    try:
        sides = (wide(whole(a, row_a), kind), wide(whole(b, row_b), kind))
    except StoreError:
        return None
    rows_a, rows_b = (np.moveaxis(one.reshape(shape), axis, 0).reshape(count, -1) for one in sides)
    share = max(NEAR, NEAR_EPS * (dtypes.dtype(kind).eps or 0.0))
    limit = share * np.linalg.norm(rows_a - rows_a.mean(axis=0))
    unknown = Order(np.arange(count), np.zeros(count, np.int64))
    for order in (unknown.settled(rows_a, rows_b), _nearest_rows(rows_a, rows_b)):
        if order is None:
            continue
        apart = np.linalg.norm(rows_b[order.places] - rows_a)
        if apart <= limit and apart < np.linalg.norm(rows_b - rows_a):
            return order
    return None


def _nearest_rows(rows_a: Array, rows_b: Array) -> Order | None:
    """Return the order in which each of A's rows has the row of B that is nearest to it.

    It serves where rounding is coarse: there rows that are paired by rank along one direction may
    be paired wrongly. None where two rows of A have the same nearest row, and for too many rows.
    """
    count = len(rows_a)
    if count * count > MOST_PAIRS:
        return None
    with np.errstate(all="ignore"):
        squares = np.square(rows_b).sum(axis=1) - 2 * rows_a @ rows_b.T
    places = np.argmin(np.nan_to_num(squares, nan=np.inf), axis=1)
    distinct = len(np.unique(places)) == count
    return Order(places, np.arange(count)) if distinct else None
