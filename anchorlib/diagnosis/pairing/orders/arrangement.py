"""B's records with their samples put into the order in which A has them.

A record that follows the samples has an axis as long as the batch, or a multiple of that where a
module flattens samples and positions. Which axis follows the samples, and whether any axis does, is
decided by values: B's record is reordered along each such axis in turn (a move), and the move after
which B's record is nearest to A's record is taken, if that is clearly nearer than without a move.

Samples may be alike in the record from which the order was read: an edge from one node to another
is as long as the edge back. The first later record in which such samples differ settles their
order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.identity import same_bits
from anchorlib.diagnosis.pairing.orders.drifted import near_order
from anchorlib.diagnosis.pairing.orders.order import Order, Orders, Pass, pass_of, wide
from anchorlib.diagnosis.pairing.orders.permutations import orders
from anchorlib.diagnosis.pairing.splits import buffers_of, halves_of, parameters_of
from anchorlib.diagnosis.pairing.tables import Table, whole
from anchorlib.errors import StoreError
from anchorlib.summary import digest

__all__ = ["arranged"]

Array = np.ndarray[Any, Any]
KINDS = ("value", "grad")
CLEARLY = 0.1  # of the distance in B's own order: a move must leave less
MOST_ELEMENTS = 1 << 26
MOST_PARTS = 4
"""Of how many batches the samples may be with which a model was called at once."""
TRIED = 3
"""How many values of a pass may follow no order of its step before the pass is given up."""


class Move(NamedTuple):
    """How a record is reordered.

    split: the shape to which the record is reshaped first, in which samples have their own axis.
    axis: the samples' axis in that shape. order: for each of A's samples, its index in B.
    """

    axis: int
    order: Array
    split: tuple[int, ...]

    def of(self, values: Array) -> Array:
        """Return B's values in A's order, as a flat array.

        values: all elements of the record, in any shape.
        """
        in_samples = values.reshape(self.split)
        reordered: Array = np.ascontiguousarray(
            in_samples.take(self.order, axis=self.axis)
        ).reshape(-1)
        return reordered


def arranged(alignment: Alignment) -> Alignment:
    """Return the alignment with B's samples in A's order; itself where no other order is found."""
    orders_found = orders(alignment)
    if not orders_found:
        return alignment
    moves = _moves(alignment, orders_found)
    if not moves:
        return alignment
    b = _moved(alignment.b, moves)
    equal = same_bits(alignment.a, b, alignment.a_row, alignment.b_row)
    steps = sorted({int(alignment.b.step[row]) for row in moves})
    return replace(alignment, b=b, equal=equal, reordered=steps[0])


def _moves(alignment: Alignment, orders_of: Orders) -> dict[int, Move]:
    """Return how to reorder each row of B whose record follows the samples: row -> move.

    orders_of: the orders of the passes whose samples B has in another order.
    """
    a, b = alignment.a, alignment.b
    parameters = parameters_of(a)
    whose = a.where(lambda one: one.kind in KINDS and one.name not in parameters)
    pairs = alignment.differing
    pairs = pairs[whose[alignment.a_row[pairs]]]
    known = _KnownOrders(orders_of, buffers_of(a))
    moves: dict[int, Move] = {}
    values: dict[Hashable, Move] = {}
    for pair in pairs[np.argsort(a.order[alignment.a_row[pairs]], kind="stable")].tolist():
        row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
        if not (a.kept[row_a] and b.kept[row_b]):
            continue
        try:
            move = known.move(alignment, pair)
        except StoreError:
            continue
        tensor = a.tensors[a.tensor[row_a]]
        place = (pass_of(a, row_a), tensor.name, int(a.call[row_a]), int(b.shape[row_b]))
        # Where a gradient differs too much to show its order, it has the order of its value.
        if move is None and tensor.kind == "grad":
            move = values.get(place)
        if move is not None:
            moves[row_b] = move
            values.setdefault(place, move)
    return moves


class _KnownOrders:
    """The orders of each pass, as far as the records that were read so far show them.

    The order of some passes is not known. A forward without gradients, for instance, records no
    input if the program calls parts of the model directly, as to set up a norm from data. Such a
    pass may still read the batch of its step, so the orders of the other passes of its step are
    tried. Where these have none either, as after the last optimizer's step or in a program that
    calls parts of the model alone from some step on, the orders of the step before are tried, as
    many programs deal every batch alike; then the order in which the rows of the record itself are
    nearly equal. A pass whose order is known may also read what another pass of its step made of
    other samples: orders of as many samples are tried behind its own.
    """

    def __init__(self, orders_of: Orders, buffers: Set[tuple[str, int]]) -> None:
        self._given, self._buffers = orders_of, buffers
        self._known = {key: list(known) for key, known in orders_of.items()}
        self._tries: Counter[Pass] = Counter()

    def move(self, alignment: Alignment, pair: int) -> Move | None:
        """Return how to reorder B's record to bring it clearly nearer to A's; None if nothing does.

        A move that is found decides the order of its pass for later calls. Raises StoreError where
        a record cannot be read.
        """
        a, b = alignment.a, alignment.b
        row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
        own = pass_of(a, row_a)
        for number, order in enumerate(self._orders_for(alignment, pair, own)):
            move, settled = _nearest(a, row_a, b, row_b, order)
            if move is not None:
                known = self._known.setdefault(own, [])
                known[number : number + 1] = [settled]
                return move
        return None

    def _orders_for(self, alignment: Alignment, pair: int, own: Pass) -> Iterator[Order]:
        """Yield the orders to try for a pair of records of a pass."""
        a, row = alignment.a, int(alignment.a_row[pair])
        rank, _, step, _ = own
        if own in self._known:
            known = list(self._known[own])
            lengths = {len(order.places) for order in known}
            others = {
                len(one.places): one
                for of, some in self._given.items()
                if (of[0], of[2]) == (rank, step)
                for one in some
                if len(one.places) not in lengths
            }
            yield from (*known, *others.values())
            return
        tensor = a.tensors[a.tensor[row]]
        if (tensor.name, rank) not in self._buffers:  # which hold no samples, or earlier ones
            self._tries[own] += 1
        if self._tries[own] > TRIED:
            return
        of_step = self._of_step(rank, step, self._given)
        yield from of_step or self._of_step(rank, step - 1, self._known)
        lengths = {len(one.places) for some in self._given.values() for one in some}
        if not of_step and a.shapes[a.shape[row]][:1] in {(length,) for length in lengths}:
            yield from filter(None, [near_order(alignment, pair)])

    def _of_step(self, rank: int, step: int, orders_of: Orders) -> list[Order]:
        """Return the orders of all passes of a step."""
        passes = ((of, some) for of, some in orders_of.items() if (of[0], of[2]) == (rank, step))
        return [one for _, some in passes for one in some]


def _nearest(a: Table, row_a: int, b: Table, row_b: int, order: Order) -> tuple[Move | None, Order]:
    """Return the move that brings B's record clearly nearer to A's, and the order of the samples.

    The returned order is `order`, or `order` with the places of alike samples settled by this
    record. The move is None where no move brings the records clearly nearer, and for records of
    different shape or dtype, or with too many elements. Raises StoreError where a record cannot be
    read.
    """
    shape = a.shapes[a.shape[row_a]]
    tried = list(_tried(shape, order))
    of_one_form = (
        shape == b.shapes[b.shape[row_b]] and a.dtypes[a.dtype[row_a]] == b.dtypes[b.dtype[row_b]]
    )
    if not tried or not of_one_form or a.figures["numel"][row_a] > MOST_ELEMENTS:
        return None, order
    kind = a.dtypes[a.dtype[row_a]]
    raw = whole(b, row_b)
    values_a, values_b = wide(whole(a, row_a), kind), wide(raw, kind)
    with np.errstate(all="ignore"):
        own = _apart(values_a, values_b.reshape(-1))
        distances = [_apart(values_a, move.of(values_b)) for move in tried]
        best = int(np.argmin(distances))
        known = _settled(order, tried[best], values_a, values_b) if distances[best] else order
        if known is not order:
            settled = tried[best]._replace(order=known.places)
            distance = _apart(values_a, settled.of(values_b))
            if distance < CLEARLY * min(own, distances[best]):
                return settled, known
    return tried[best] if distances[best] < CLEARLY * own else None, order


def _settled(order: Order, move: Move, values_a: Array, values_b: Array) -> Order:
    """Return `order`, with the places of alike samples settled by one more record if it can.

    Only a record whose samples have an axis of their own can settle them. Alike samples are those
    that were equal in the records from which the order was read.
    move: how B's record follows the samples. values_a, values_b: the record in A and in B.
    """
    count = len(order.places)
    if len(np.unique(order.alike)) == count or move.split[move.axis] != count:
        return order
    rows = (
        np.moveaxis(each.reshape(move.split), move.axis, 0).reshape(count, -1)
        for each in (values_a, values_b)
    )
    return order.settled(*rows)


def _tried(shape: tuple[int, ...], order: Order) -> Iterator[Move]:
    """Yield the moves along all axes along which a record of this shape may follow the samples.

    An axis that flattens samples and positions may have the samples as its outer or its inner part:
    both moves are tried. An axis shorter than the order may hold one of several batches with which
    a model was called at once; the first axis also groups that samples belong to, such as episodes.
    """
    places, count = order.places, len(order.places)
    for axis, size in enumerate(shape):
        if size == count:
            yield Move(axis, places, shape)
        elif size and size % count == 0:
            times = size // count
            yield Move(axis, places, (*shape[:axis], count, times, *shape[axis + 1 :]))
            yield Move(axis + 1, places, (*shape[:axis], times, count, *shape[axis + 1 :]))
        elif size > 1 and count % size == 0:
            parts = order.of_parts(size) if count // size <= MOST_PARTS else ()
            groups = order.of_groups(size) if axis == 0 else ()  # channels are no episodes
            yield from (Move(axis, part, shape) for part in (*parts, *groups))


def _apart(left: Array, right: Array) -> float:
    """Return the distance of two arrays.

    Elements that are not finite in one of them count as far apart as the largest other element is
    large, and as 1 at least: a mask may be all in which two samples differ. Those that are not
    finite in both count if they differ.
    """
    left = left.reshape(-1)
    both = np.isfinite(left) & np.isfinite(right)
    apart = np.abs(left[both] - right[both])
    odd = ~both & ~((left == right) | (np.isnan(left) & np.isnan(right)))
    largest = max(1.0, float(np.abs(left[both]).max(initial=0.0)))
    return float(np.hypot(np.linalg.norm(apart), largest * np.sqrt(odd.sum())))


def _moved(b: Table, moves: Mapping[int, Move]) -> Table:
    """Return B's table with the rows in `moves` read in A's order, and with digests of that order.

    Figures stay as recorded: the order changes sums and norms by rounding alone.
    """
    digests = b.digest.copy()
    for row, move in moves.items():
        digests[row] = halves_of(digest(move.of(whole(b, row))))
    return replace(b, digest=digests, read=_reader(b, moves), stack=_stacker(b, moves))


def _reader(b: Table, moves: Mapping[int, Move]) -> Callable[[int, int], Iterator[Array]]:
    def read(row: int, nbytes: int) -> Iterator[Array]:
        move = moves.get(row)
        if move is None:
            yield from b.read(row, nbytes)
            return
        raw = move.of(whole(b, row))
        count = max(nbytes // raw.itemsize, 1)
        for start in range(0, len(raw), count):
            yield raw[start : start + count]

    return read


def _stacker(b: Table, moves: Mapping[int, Move]) -> Callable[[Array], Array] | None:
    inner = b.stack
    if inner is None:
        return None

    def stack(rows: Array) -> Array:
        stacked = np.array(inner(rows))
        for at, row in enumerate(rows.tolist()):
            if (move := moves.get(row)) is not None:
                stacked[at] = move.of(stacked[at])
        return stacked

    return stack
