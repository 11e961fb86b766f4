"""How large the chunks of arrays are in ranks that are not sealed; each chunk is one file.

A reader makes one request for each chunk, and a writer keeps a file open for each chunk, so chunks
are large. The catalogue's chunks are small, because readers of a running training read its last
chunk again and again. `seal.chunk_grid` chooses the chunks of sealed ranks.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CATALOG_CHUNK", "ROWS_PER_CHUNK", "elements_per_chunk", "rows_per_chunk", "shape_rows"]

ROWS_PER_CHUNK: Final = 65536
"""How many records one chunk of a column of the table holds."""

CATALOG_CHUNK: Final = 1 << 16
"""The size in bytes of a chunk of the catalogue; readers of a live run reread its last chunk often.
"""

CHUNK_BYTES: Final = 2 << 20
"""The most bytes of a chunk that holds the values of several records."""

OWN_CHUNK_BYTES: Final = 1 << 20
"""A record with at least this many bytes of values has a chunk file to itself."""


def rows_per_chunk(nbytes: int) -> int:
    """Return how many records one chunk file holds, if each record has `nbytes` bytes.

    A record of 1 MiB or more has a file of its own, written once. Smaller records share files of at
    most 2 MiB and 65,536 records: making a file costs more than filling it, and readers pay for
    each file that they open.
    """
    if nbytes >= OWN_CHUNK_BYTES:
        return 1
    return min(CHUNK_BYTES // max(nbytes, 1), ROWS_PER_CHUNK)


def elements_per_chunk(itemsize: int) -> int:
    """Return how many elements, `itemsize` bytes each, a chunk of a flat array of values holds.

    A flat array holds the elements of records of many shapes, end to end.
    """
    return CHUNK_BYTES // itemsize


def shape_rows(ndim: int) -> int:
    """Return how many records' shapes one chunk holds, in the array of shapes of a flat form.

    A flat form holds records of many shapes. ndim: how many numbers are stored for each shape.
    """
    return max(ROWS_PER_CHUNK // ndim, 1)
