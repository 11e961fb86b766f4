"""Digests of the samples of a batch, which are the slices of a record along one of its axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.tables.table import Table

__all__ = ["row_digests", "whole"]

Array = np.ndarray[Any, Any]


def row_digests(table: Table, row: int, axis: int = 0) -> list[bytes]:
    """Return the digests of a record's slices along an axis, in order.

    Raises StoreError where the record cannot be read.
    """
    raw = whole(table, row)
    slices = np.ascontiguousarray(np.moveaxis(raw, axis, 0))
    return [xxhash.xxh3_128_digest(np.atleast_1d(sample).view(np.uint8).data) for sample in slices]


def whole(table: Table, row: int) -> Array:
    """Return the raw storage of a whole record in its shape; its digest is not checked.

    Raises StoreError where the record cannot be read.
    """
    shape = table.shapes[table.shape[row]]
    storage = dtypes.dtype(table.dtypes[table.dtype[row]]).storage
    size = max(int(np.prod(shape, dtype=np.int64)) * storage.itemsize, 1)
    blocks = list(table.read(row, size))
    raw: Array = np.concatenate(blocks) if blocks else np.empty(0, storage)
    return raw.reshape(shape)
