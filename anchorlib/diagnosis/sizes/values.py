"""A record's values, read a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Table

__all__ = ["BLOCK", "READ", "pieces", "regrouped"]

Array = np.ndarray[Any, Any]
BLOCK = 1 << 16  # elements that are worked on at once: they fit the caches
READ = 1 << 20  # elements of a large record that are read at once


def pieces(table: Table, row: int) -> Iterator[Array]:
    """Yield the stored elements of a record, undecoded, in C order, BLOCK elements at a time."""
    itemsize = dtypes.dtype(table.dtypes[int(table.dtype[row])]).storage.itemsize
    yield from regrouped(table.read(row, READ * itemsize))


def regrouped(reads: Iterable[Array]) -> Iterator[Array]:
    """Yield the elements of all reads in one sequence, cut into pieces of BLOCK elements."""
    rest: Array | None = None
    for read in reads:
        elements = read if rest is None or not len(rest) else np.concatenate([rest, read])
        whole = len(elements) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            yield elements[start : start + BLOCK]
        rest = elements[whole:]
    if rest is not None and len(rest):
        yield rest
