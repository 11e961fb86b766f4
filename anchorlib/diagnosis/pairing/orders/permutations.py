"""Samples that one run has in another order within a batch, recognised by the bits of their rows.

A batch in another order holds the same samples: results of single samples are equal, and sums over
samples differ by the order of addition alone. The order is read from the first value of each pass
that has equal rows in both runs at different places. Figures that do not depend on the order
(extremes and counts; the norm but for rounding) show which values are worth reading row by row.
Once rounding has changed the parameters, the rows that a model computes are not equal any more. In
such passes the order is read from nearly equal rows, of values that gave an order in other passes
(`drifted`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.orders.drifted import drifted
from anchorlib.diagnosis.pairing.orders.order import (
    Order,
    Orders,
    Pass,
    call_of,
    pass_of,
)
from anchorlib.diagnosis.pairing.splits import parameters_of
from anchorlib.diagnosis.pairing.tables import Table, model_of_input, row_digests
from anchorlib.errors import StoreError

__all__ = ["orders"]

UNORDERED = ("zero", "nan", "inf", "subnormal", "min", "max")
NEAR = 1e-9  # share of the norm by which the order of addition may change the norm
TRIED = 3  # values that are tried in a pass, and passes before the search is given up
MOST = 1 << 16  # samples of a batch
ELEMENTS = 4  # the fewest elements of a sample whose bits identify it
SURE = 16  # the fewest rows from which several values with small rows together give an order
_DROPPING = re.compile(r"Dropout\w*\((?!p=0(\.0)?[,)])|DropoutBackward|dropout(_p)?=0?\.\d*[1-9]")


def orders(alignment: Alignment) -> Orders:
    """Return the orders of each pass whose samples B has in another order.

    {} for runs with dropout, and where none of the first TRIED passes that may have another order
    turns out to have another order. Dropout masks are drawn by place, so a sample at another place
    has another mask, and no order makes the runs equal.
    """
    orders_of_passes: dict[Pass, list[Order]] = {}
    telling: set[tuple[int, int]] = set()
    failed = 0
    for key, batches in _candidates(alignment):
        if not (orders_of_passes or failed) and _drops(alignment.a, alignment.b):
            return {}
        for pairs in batches:
            pair, order = _order_of_batch(alignment, pairs)
            if order is not None and not _made_so(alignment, pair, len(order.places)):
                orders_of_passes.setdefault(key, []).append(order)
                telling.add(call_of(alignment.a, int(alignment.a_row[pair])))
        failed += key not in orders_of_passes
        if failed >= TRIED and not orders_of_passes:
            return {}
    for key, order in drifted(alignment, telling, orders_of_passes):
        orders_of_passes.setdefault(key, []).append(order)
    return orders_of_passes


def _order_of_batch(alignment: Alignment, pairs: Sequence[int]) -> tuple[int, Order | None]:
    """Return the first of `pairs` that alone tells the order of a batch, and that order.

    If no pair does, return the first of `pairs` and the order that they tell together, which is
    None where they tell none either. pairs: pairs with values of one batch.
    """
    for pair in pairs:
        if (order := _order(alignment, pair)) is not None:
            return pair, order
    return pairs[0], _joint_order(alignment, pairs)


def _candidates(alignment: Alignment) -> Iterator[tuple[Pass, list[list[int]]]]:
    """Yield for each pass the first pairs that may have equal elements in another order.

    As a pass may have several batches, the pairs are given as a list of pairs, TRIED at most, for
    each length of the first axis.

    These are pairs of differing values, not of parameters, with stored values and with equal
    figures where the figures do not depend on the order.
    """
    a, b = alignment.a, alignment.b
    pairs = alignment.differing
    parameters = parameters_of(a)
    values = a.where(lambda one: one.kind == "value" and one.name not in parameters)
    pairs = pairs[values[alignment.a_row[pairs]]]
    one, two = alignment.a_row[pairs], alignment.b_row[pairs]
    alike = (a.figures["numel"][one] > 1) & (a.figures["min"][one] < a.figures["max"][one])
    alike &= (a.figures["numel"][one] == b.figures["numel"][two]) & (a.kept[one] & b.kept[two] > 0)
    for name in UNORDERED:
        alike &= a.figures[name][one] == b.figures[name][two]
    norms = a.figures["l2"][one], b.figures["l2"][two]
    alike &= np.abs(norms[0] - norms[1]) <= NEAR * norms[0]
    passes: dict[Pass, dict[int, list[int]]] = {}
    for pair in pairs[alike][np.lexsort((a.order[one[alike]], a.step[one[alike]]))].tolist():
        row = int(alignment.a_row[pair])
        batches = passes.setdefault(pass_of(a, row), {})
        own = batches.setdefault(a.shapes[a.shape[row]][0], [])
        if len(own) < TRIED:
            own.append(pair)
    for key, batches in passes.items():
        yield key, list(batches.values())


def _order(alignment: Alignment, pair: int) -> Order | None:
    """Return where B has each of A's rows, along the first or second axis; None without an order.

    Both records must have equal rows, most of them distinct, some of them at different places; each
    row must have ELEMENTS elements or more.
    """
    a, b = alignment.a, alignment.b
    row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    shape = a.shapes[a.shape[row_a]]
    if shape != b.shapes[b.shape[row_b]] or a.dtypes[a.dtype[row_a]] != b.dtypes[b.dtype[row_b]]:
        return None
    # Rows of one or two elements, as class indices, do not identify a sample.
    for axis, size in enumerate(shape[: max(len(shape) - 1, 0)][:2]):
        if not 1 < size <= MOST or a.figures["numel"][row_a] < ELEMENTS * size:
            continue
        try:
            digests_a, digests_b = row_digests(a, row_a, axis), row_digests(b, row_b, axis)
        except StoreError:
            return None
        if (order := _places(digests_a, digests_b)) is not None:
            return order
    return None


def _joint_order(alignment: Alignment, pairs: Sequence[int]) -> Order | None:
    """Return where B has each of A's samples, told by several values with few elements per sample.

    Such values are the two ends of edges, or a user and an item: integer tensors with equally many
    samples. One of these values alone does not identify a sample; all of them together do. None
    where they have fewer than two elements per sample in all, where a record cannot be read, and
    where `_places` finds no order.
    """
    a = alignment.a
    sides: tuple[list[list[bytes]], list[list[bytes]]] = ([], [])
    elements = 0
    for pair in pairs:
        row = int(alignment.a_row[pair])
        axis = _long_axis(alignment, pair)
        size = 0 if axis is None else a.shapes[a.shape[row]][axis]
        if axis is None or (sides[0] and size != len(sides[0][0])):
            continue
        try:
            sides[0].append(row_digests(a, row, axis))
            sides[1].append(row_digests(alignment.b, int(alignment.b_row[pair]), axis))
        except StoreError:
            return None
        elements += int(a.figures["numel"][row]) // size
    if elements < 2:
        return None
    return _places(*(list(map(b"".join, zip(*side, strict=True))) for side in sides))


def _long_axis(alignment: Alignment, pair: int) -> int | None:
    """Return the longer axis of a pair of integer records, which counts the samples.

    The edges of a graph are such samples: their two ends are stored as (2, edges) or (edges, 2).
    None where shapes or dtypes differ, for other dtypes than integers, for more than two axes, and
    for an axis shorter than SURE or longer than MOST.
    """
    a, b = alignment.a, alignment.b
    row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    shape, kind = a.shapes[a.shape[row_a]], a.dtypes[a.dtype[row_a]]
    if shape != b.shapes[b.shape[row_b]] or kind != b.dtypes[b.dtype[row_b]] or len(shape) > 2:
        return None
    axis = int(np.argmax(shape))
    return axis if kind.startswith("int") and SURE <= shape[axis] <= MOST else None


def _places(rows_a: list[bytes], rows_b: list[bytes]) -> Order | None:
    """Return where B has each row of A; None unless rows are equal, most distinct, and reordered.

    rows_a, rows_b: digests of the rows. Among rows that are equal, the first one in A is taken for
        the first one in B; `Order.alike` marks them.
    """
    places_b: dict[bytes, list[int]] = {}
    for place, row in enumerate(rows_b):
        places_b.setdefault(row, []).append(place)
    if sorted(rows_a) != sorted(rows_b) or 2 * len(places_b) <= len(rows_b) or rows_a == rows_b:
        return None
    numbers = {row: number for number, row in enumerate(places_b)}
    return Order(
        np.array([places_b[row].pop(0) for row in rows_a], np.int64),
        np.array([numbers[row] for row in rows_a], np.int64),
    )


def _made_so(alignment: Alignment, pair: int, count: int) -> bool:
    """Return whether an operation of the model, not the batch, made the order of a pair's samples.

    An operation made it where a value from which the pair's tensor was computed has equal bits in
    both runs. The value must be of the pair's pass, have an axis of `count` samples, and be no
    constant. Of an order along a second axis any such value tells that: channels are no samples.
    Nor are they samples if another input of the same model stays as it is along that axis, as one
    that has the same axis of time.
    """
    a, row = alignment.a, int(alignment.a_row[pair])
    tensor = a.tensors[a.tensor[row]]
    own = (tensor.name, a.phases[a.phase[row]], int(a.call[row]))
    statements = [
        one for one in a.edges.get(tensor.rank, ()) if (one.name, one.phase, one.call) == own
    ]
    # A module may be given a batch in one pass, and another module's result in the next one.
    of_pass = [one for one in statements if one.pass_index == a.pass_index[row]]
    statements = of_pass or statements
    parents = {
        parent.name for one in statements for parent in one.parents if parent.call is not None
    }
    beside = a.shapes[a.shape[row]][0] != count
    siblings = {
        one.name
        for one in a.tensors
        if model_of_input(one.name) == model_of_input(tensor.name) != ""
    }
    before = alignment.a_row[alignment.equal]
    before = before[(a.step[before] == a.step[row]) & (a.order[before] < a.order[row])]
    return any(
        one.kind == "value"
        and (
            (one.name in parents and (beside or count in a.shapes[a.shape[other]]))
            or (beside and one.name in siblings and a.shapes[a.shape[other]][1:2] == (count,))
        )
        and a.figures["min"][other] < a.figures["max"][other]
        and pass_of(a, other) == pass_of(a, row)
        for other in before.tolist()
        for one in [a.tensors[a.tensor[other]]]
    )


def _drops(*tables: Table) -> bool:
    """Return whether any run uses dropout, by the texts of its modules and operations."""
    return any(_DROPPING.search(text) for table in tables for text in _texts(table))


def _texts(table: Table) -> Iterator[str]:
    for header in table.header.values():
        yield from (text for text in header.values() if isinstance(text, str))
    for statements in table.edges.values():
        for edges in statements:
            yield from edges.ops
            yield from edges.arguments or ()
