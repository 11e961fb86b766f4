"""The records of one tensor, and their values as numbers that may be compared across steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import read

__all__ = ["Site", "parameter_before", "series", "site_of", "values", "values_of_pair"]

Array = np.ndarray[Any, Any]
Site = tuple[str, int, int, int, int, int]


def series(
    table: Table, row: int, kind: str, name: str | None = None, *, every_phase: bool = False
) -> Array:
    """Return the rows of a tensor's records of one kind, in order of execution.

    Only records of the rank, phase and attempt of `row` are taken.
    name: the tensor's name; None for the tensor of `row`. every_phase: whether to take the records
        of all phases.
    """
    own = table.tensors[table.tensor[row]]
    which = table.of_tensor(own.name if name is None else name, kind, own.rank)
    which &= every_phase | (table.phase == table.phase[row])
    rows = np.flatnonzero(which & (table.attempt == table.attempt[row]))
    rows_in_order: Array = rows[np.argsort(table.order[rows], kind="stable")]
    return rows_in_order


def values(table: Table, row: int) -> Array | None:
    """Return the values of a record, flat, in float64 and divided by its loss scale.

    None where the values were not kept, are complex, or are not all finite. Raises StoreError where
    they cannot be read.
    """
    kind = dtypes.dtype(table.dtypes[table.dtype[row]])
    if not table.kept[row] or kind.family == "complex":
        return None
    decoded: Array = read(table, row).astype(np.float64).reshape(-1) / float(table.scale[row])
    return decoded if np.isfinite(decoded).all() else None


def values_of_pair(alignment: Alignment, row: int) -> tuple[Array, Array] | None:
    """Return the values of a row of A and of its partner in B; None where they cannot be compared.

    They cannot where the row has no partner, where `values` gives None for one of the two, or where
    the sizes differ. Raises StoreError where they cannot be read.
    """
    pair = int(np.searchsorted(alignment.a_row, row))  # pairs are in A's order
    if alignment.a_row[pair : pair + 1].tolist() != [row]:
        return None
    x, y = values(alignment.a, row), values(alignment.b, int(alignment.b_row[pair]))
    return None if x is None or y is None or x.size != y.size else (x, y)


def parameter_before(table: Table, row: int) -> Array | None:
    """Return the values of a row's parameter before the row's step; None if they are not known.

    row: a row of any kind of a parameter. The values are those recorded in the step's forward, or
    else what the step made of the parameter (`updated`) less its change (`delta`). Raises
    StoreError where values cannot be read.
    """
    own, step = table.tensors[table.tensor[row]], table.step[row]
    known: dict[str, Array] = {}
    for kind in ("value", "updated", "delta"):
        of_step = np.flatnonzero(table.of_tensor(own.name, kind, own.rank) & (table.step == step))
        if len(of_step) and (read := values(table, int(of_step[0]))) is not None:
            known[kind] = read
    if "value" in known:
        return known["value"]
    return known["updated"] - known["delta"] if {"updated", "delta"} <= known.keys() else None


def site_of(table: Table, row: int) -> Site:
    """Return the key by which a value and its gradient find each other.

    It is (name, rank, attempt, step, pass, call).
    """
    tensor = table.tensors[table.tensor[row]]
    return (
        tensor.name,
        tensor.rank,
        int(table.attempt[row]),
        int(table.step[row]),
        int(table.pass_index[row]),
        int(table.call[row]),
    )
