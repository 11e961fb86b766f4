"""Single numbers from which a larger recorded number is made, as a penalty that begins at zero.

    consistency = mse_loss(probabilities, those_of_the_teacher)    0 | 1e-15 in the first step
    loss = cross_entropy(logits, labels) + consistency             2.31

Such a number may be the rest of terms that cancel, so that its own size says nothing of how it
rounds. Its gradient is judged by itself, and the larger number shows how far it may be rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import Measures

__all__ = ["share_of_reader", "sizes_of_readers"]

Array = np.ndarray[Any, Any]


def sizes_of_readers(first: FirstStep, rows: Array) -> Array:
    """Return, for each row, the size of the largest single number made directly from the row's.

    Both runs must state that they make the larger number so. 0.0 for rows that are no value of a
    single number, for numbers without a recorded gradient in one of the runs, and where no single
    number that is made from them was recorded.
    rows: rows of A in the first step that differs.
    """
    alignment, a = first.alignment, first.alignment.a
    names = {renaming.b: renaming.a for renaming in alignment.renamed}
    readers = _readers(a, {}) & _readers(alignment.b, names)
    followed = _followed(a, {}) & _followed(alignment.b, names)
    numbers = {
        (tensor.name, tensor.rank): max(float(a.figures["l2"][row]) for row in own)
        for number, own in first.rows_of[0].items()
        if (tensor := a.tensors[number]).kind == "value"
        and all(a.figures["numel"][row] == 1 for row in own)
    }
    sizes = np.zeros(len(rows))
    for at, row in enumerate(rows.tolist()):
        name, kind, _, rank = a.tensors[a.tensor[row]]
        if kind == "value" and (name, rank) in numbers and (name, rank) in followed:
            made = (reader for reader, read, of in readers if (read, of) == (name, rank))
            sizes[at] = max((numbers.get((one, rank), 0.0) for one in made), default=0.0)
    return sizes


def share_of_reader(alignment: Alignment, measures: Measures, row: int) -> float:
    """Return the size of a single number over that of the largest single number computed from it.

    1.0 where no larger number is known to be computed from it, and for a row of several elements.
    row: a row of A in the first step that differs.
    """
    a = alignment.a
    if a.figures["numel"][row] != 1:
        return 1.0
    first = FirstStep(alignment, measures, int(a.step[row]))
    (size,) = sizes_of_readers(first, np.array([row]))
    own = float(a.figures["l2"][row])
    return own / float(size) if size > own else 1.0


def _readers(table: Table, names: dict[str, str]) -> set[tuple[str, str, int]]:
    """Return (name, name of a parent, rank) for each value and parent in a run's statements.

    A parent is a value from which the value was computed; parameters do not count.

    names: B's names -> A's, where they differ; empty for A's table.
    """
    return {
        (names.get(edges.name, edges.name), names.get(parent.name, parent.name), rank)
        for rank, statements in table.edges.items()
        for edges in statements
        for parent in edges.parents
        if parent.call is not None
    }


def _followed(table: Table, names: dict[str, str]) -> set[tuple[str, int]]:
    return {
        (names.get(tensor.name, tensor.name), tensor.rank)
        for tensor in table.tensors
        if tensor.kind == "grad"
    }
