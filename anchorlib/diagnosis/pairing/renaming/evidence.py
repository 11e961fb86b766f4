"""What names are matched by besides their spelling: shapes, and the operations that made them."""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.pairing.edges import compiled
from anchorlib.diagnosis.pairing.renaming.names import Made, Shapes
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["made_by", "named"]


def made_by(table: Table) -> Made:
    """Return for each name the operations that made its tensor, where all of them are known.

    A name is left out if its edges may lack parents, or if compiled code made its tensor.
    """
    operations: dict[str, tuple[str, ...]] = {}
    for statements in table.edges.values():
        for edges in statements:
            if not edges.missing and not compiled(edges.ops):
                operations.setdefault(edges.name, edges.ops)
    return operations


def named(table: Table) -> Shapes:
    """Return for each name and kind the shape of its first record; names in order of execution."""
    first = np.full(len(table.tensors), -1)
    # Backwards, so that what is written last is the first record.
    first[table.tensor[::-1]] = np.arange(len(table))[::-1]
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for number in np.argsort(first, kind="stable").tolist():
        if first[number] >= 0:
            tensor = table.tensors[number]
            shape = table.shapes[table.shape[first[number]]]
            shapes.setdefault(tensor.name, {}).setdefault(tensor.kind, shape)
    return shapes
