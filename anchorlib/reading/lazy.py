"""The values of a series as a lazy dask array; a chunk is read by the process that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import MissingExtraError, OptionError
from anchorlib.store import (
    RankHandle,
    RankReader,
    packed_rows,
    rank_handle,
    rows_together,
    unpacked_rows,
)

__all__ = ["Chunks", "LazyValues", "lazy_values"]

Chunks: TypeAlias = str | int | tuple[Any, ...] | Mapping[str, Any]
"""Chunk sizes in any spelling of dask, or a dict by dimension: "record", "d0", "d1", …"""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class LazyValues:
    """An array-like of shape (record, *tensor shape), which reads values when dask indexes it.

    It can be pickled, as it holds no open files, only what is needed to find and open the run.

    pin: says how any process finds the rank that recorded the values.
    rows: row numbers in the rank's table of records, compressed by `packed_rows`.
    element: torch's name of the dtype that was recorded, such as "bfloat16".
    shape: (record, *tensor shape).
    dtype: numpy's dtype of the values as they are read.
    """

    pin: RankHandle
    rows: bytes
    element: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """The number of dimensions, the dimension "record" included."""
        return len(self.shape)

    def __getitem__(self, where: tuple[Any, ...]) -> Array:
        """Read and return the values at an index.

        Raises DamagedError for values that are not those that were recorded, and RunNotFoundError
        or StoreError where the run is not found or cannot be read.

        where: an entry for each dimension; dask passes numbers, slices or lists of numbers.
        """
        first, *rest = where
        rows = unpacked_rows(self.rows)[first]
        if not rows.size:
            return np.empty((0, *self.shape[1:]), self.dtype)[(slice(None), *rest)]
        raw = self.pin.reader().stack(np.atleast_1d(rows))
        values: Array = dtypes.decode(raw, self.element)
        return values[(slice(None) if rows.ndim else 0, *rest)]


def lazy_values(
    reader: RankReader, rows: Array, form: tuple[str, tuple[int, ...]], chunks: Chunks
) -> Any:
    """Return a lazy dask array of the values in these rows of a rank's table of records.

    Raises MissingExtraError where dask is not installed, OptionError for chunks that do not fit the
    shape, UnsupportedError for a run that was not opened by its name, as no other process could
    find it.

    reader: reads the rank that recorded the values.
    rows: row numbers.
    form: the (dtype, shape) that all of these records have.
    chunks: chunk sizes as dask takes them, or a dict by dimension ("record", "d0", …).
    """
    try:
        import dask.array
    except ImportError as error:
        raise MissingExtraError(
            "to_xarray(chunks=…) needs dask: pip install 'anchorlib[dask]'"
        ) from error
    name, own = form
    shape = (len(rows), *own)
    dtype = dtypes.decode(np.empty(0, dtypes.dtype(name).storage), name).dtype
    nbytes = dtypes.dtype(name).storage.itemsize * prod(own)
    stored = (rows_together(len(rows), nbytes), *own)
    asked = _by_axis(chunks, stored)
    try:
        chunk_sizes = dask.array.core.normalize_chunks(
            asked, shape, dtype=dtype, previous_chunks=stored
        )
    except (ValueError, TypeError) as error:
        raise OptionError(f"chunks={chunks!r} do not fit {shape}: {error}") from None
    values = LazyValues(rank_handle(reader), packed_rows(rows), name, shape, dtype)
    meta = np.empty((0,) * len(shape), dtype)
    return dask.array.from_array(values, chunks=chunk_sizes, name=False, meta=meta)


def _by_axis(chunks: Chunks, stored: tuple[int, ...]) -> Any:
    """Return chunk sizes by dimension name as a tuple of sizes by axis.

    An axis that `chunks` does not name gets the chunk size of the store. Where `chunks` is not a
    dict, it is returned as it is. Raises OptionError for a dimension that the values do not have.

    stored: the chunk size of the store on each axis.
    """
    if not isinstance(chunks, Mapping):
        return chunks
    names = ["record", *(f"d{axis}" for axis in range(len(stored) - 1))]
    if unknown := [name for name in chunks if name not in names]:
        raise OptionError(
            f"chunks={chunks!r}: there is no dimension {unknown[0]!r}; there are {', '.join(names)}"
        )
    return tuple(chunks.get(name, size) for name, size in zip(names, stored, strict=True))
