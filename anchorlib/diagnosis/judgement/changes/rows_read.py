"""Which rows of a table a program reads, recognised by the bits that were read.

    reads row 10 of label.weight in A, row 0 in B, in 3 of 12 places
    reads other rows of embed.weight in 120 of 128 places, each 1 further on
    reads other rows of embed.weight in 5 of 12 places, first 3 | 7

An embedding, or an index, copies rows bit for bit. So each row of its result shows which row of the
table was read, however the index was computed. The stored edges of the record
(`anchorlib.record.Edges`) cannot show that: they have only digests of indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier
from anchorlib.diagnosis.pairing import Table
from anchorlib.diagnosis.sizes import read
from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["rows_read"]

Array = np.ndarray[Any, Any]
READING = ("EmbeddingBackward0", "IndexBackward0", "IndexSelectBackward0")
MOST_ELEMENTS = 1 << 22


def rows_read(frontier: Frontier, row: int) -> list[str]:
    """Return a clause on which rows of a table A and B read, where these differ; else [].

    row: the row of A's records that holds the result of an embedding or of indexing. The table must
    be a recorded parent of it (a record that it was computed from) and equal in both runs.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    ancestry = frontier.ancestry(row)
    reading = [op for op in ancestry.ops if not op.startswith(("View", "UnsafeView"))]
    width = a.shapes[a.shape[row]][-1:]
    sources = [one for one in frontier.parents(row) if a.shapes[a.shape[one]][1:] == width]
    sources = [one for one in sources if a.dtype[one] == a.dtype[row]]
    if len(reading) != 1 or reading[0] not in READING or len(sources) != 1:
        return []
    (source,) = sources
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    small = max(a.figures["numel"][row], a.figures["numel"][source]) <= MOST_ELEMENTS
    of_one_shape = a.shapes[a.shape[row]] == b.shapes[b.shape[row_b]]
    if frontier.status[source] != EQUAL or not (small and of_one_shape and a.kept[source]):
        return []
    try:
        table = read(a, source).reshape(a.shapes[a.shape[source]])
        sides = [_indices(table, of, one) for of, one in ((a, row), (b, row_b))]
    except StoreError:
        return []
    one, two = sides
    if one is None or two is None or (one == two).all():
        return []
    return [_clause(a, source, one, two)]


def _indices(table: Array, of: Table, row: int) -> Array | None:
    """Return, for each row of a record, the index of the equal row in `table`.

    None where a row has no equal row, or values are not stored.
    table: the embedding's weight, or the tensor that an index reads. of, row: the run's records,
    and the row of the record among them.
    """
    if not of.kept[row]:
        return None
    made = read(of, row)
    if made.dtype != table.dtype or made.size % table.shape[1]:
        return None
    places = {bits.tobytes(): at for at, bits in reversed(list(enumerate(table)))}
    numbers = [places.get(bits.tobytes(), -1) for bits in made.reshape(-1, table.shape[1])]
    return None if min(numbers, default=-1) < 0 else np.array(numbers)


def _clause(a: Table, source: int, read_a: Array, read_b: Array) -> str:
    name = escape(a.tensors[a.tensor[source]].name)
    other = read_a != read_b
    places = f"{int(other.sum()):,} of {len(read_a):,} places"
    first, second = (np.unique(side[other]) for side in (read_a, read_b))
    if len(first) == len(second) == 1:
        return f"reads row {first[0]} of {name} in A, row {second[0]} in B, in {places}"
    moves = np.unique((read_b - read_a)[other])
    if len(moves) == 1:
        direction = "on" if moves[0] > 0 else "back"
        return f"reads other rows of {name} in {places}, each {abs(moves[0])} further {direction}"
    at = int(np.argmax(other))
    return f"reads other rows of {name} in {places}, first {read_a[at]} | {read_b[at]}"
