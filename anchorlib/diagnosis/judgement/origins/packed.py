"""Packed sequences: rows of several samples, which stand in the order of time and then of length.

    rnn:0.0   data            (rows, width): the first row of each sample, then the second of each
    rnn:0.1   batch sizes     how many samples have a first row, a second row, …
    rnn:0.2   sorted indices, rnn:0.3   unsorted indices: which sample stands where

The order of the rows follows from the samples of a whole batch. Where the runs deal a batch in
another order, or in other parts, the rows stand for other samples, and no axis of them is the
batch. The padded sequences that are made of them have that axis.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Table
from anchorlib.diagnosis.pairing.tables import whole
from anchorlib.errors import StoreError
from anchorlib.names import join

__all__ = ["packed_sequences"]

Array = np.ndarray[Any, Any]
_DATA = re.compile(r"[:.]0$")
KINDS = ("value", "grad")
PARTS = 4
"""How many tensors a packed sequence has at most: those that are None have no records."""


def packed_sequences(table: Table, step: int) -> set[str]:
    """Return the tensors of a step that belong to packed sequences, as `name@kind`.

    The final states that a module returns beside a packed sequence, with a row for each sample,
    belong to the sequence. A sequence is recognised by its batch sizes: integers that never grow
    and that add up to the number of rows. Where the values of the batch sizes were not kept, the
    sequence is not recognised.
    """
    rows = {
        table.tensors[table.tensor[row]].name: row
        for row in np.flatnonzero(table.step == step).tolist()
        if table.tensors[table.tensor[row]].kind == "value"
    }
    known = [
        name[:-1]
        for name, row in rows.items()
        if _DATA.search(name) and _are_batch_sizes(table, rows.get(f"{name[:-1]}1"), row)
    ]
    parts = {f"{name}{part}" for name in known for part in range(PARTS)}
    modules = tuple(name.removesuffix(":0.") + ":1" for name in known if name.endswith(":0."))
    states = {name for name in rows if name.startswith(modules)} if modules else set()
    return {join(name, kind) for name in parts | states for kind in KINDS}


def _are_batch_sizes(table: Table, row: int | None, data: int) -> bool:
    """Return whether record `row` holds the batch sizes of the packed sequence in record `data`.

    False where `row` is None, and where its values were not kept or cannot be read.
    """
    shape = table.shapes[table.shape[data]]
    if row is None or not shape or len(table.shapes[table.shape[row]]) != 1:
        return False
    kind = table.dtypes[table.dtype[row]]
    if dtypes.dtype(kind).family != "int" or not table.kept[row]:
        return False
    try:
        sizes = dtypes.decode(np.ascontiguousarray(whole(table, row)), kind)
    except StoreError:
        return False
    return bool(len(sizes) and sizes[-1] > 0 and (np.diff(sizes) <= 0).all()) and (
        int(sizes.sum()) == shape[0]
    )
