"""How large a chunk of a live rank's arrays is: the records, or the bytes, that one file holds.

A reader makes one request a chunk, and a writer keeps one file open a chunk, so chunks are large;
a chunk that is being written is read again and again, so the catalogue's are small. The chunks of
sealed ranks are cut by `seal.chunk_grid`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CATALOG_CHUNK", "ROWS_PER_CHUNK", "elements_per_chunk", "rows_per_chunk", "shape_rows"]

ROWS_PER_CHUNK: Final = 65536
"""How many records a chunk of a column of the table holds."""

CATALOG_CHUNK: Final = 1 << 16
"""Bytes of a chunk of the catalogue, of which readers of a live run read the last again and again.
"""

CHUNK_BYTES: Final = 2 << 20
"""The most bytes of a chunk of values that several records share."""

OWN_CHUNK_BYTES: Final = 1 << 20
"""A record of this size or more has a chunk of its own."""


def rows_per_chunk(nbytes: int) -> int:
    """How many records of `nbytes` one chunk file holds: as many as 2 MiB takes.

    A record of 1 MiB or more has a file of its own, written once. Smaller records share files:
    making a file costs more than filling it, and readers pay for each file that they open.
    """
    if nbytes >= OWN_CHUNK_BYTES:
        return 1
    return min(CHUNK_BYTES // max(nbytes, 1), ROWS_PER_CHUNK)


def elements_per_chunk(itemsize: int) -> int:
    """How many elements a chunk of a flat form's values holds, `itemsize` bytes each."""
    return CHUNK_BYTES // itemsize


def shape_rows(ndim: int) -> int:
    """How many records a chunk of a flat form's array of shapes holds, `ndim` numbers each."""
    return max(ROWS_PER_CHUNK // ndim, 1)
