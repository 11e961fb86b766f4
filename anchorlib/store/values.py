"""The values of a variant, read from its arrays: rows of its own, or a part of the flat ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.catalog import Variant
from anchorlib.store.layout import ROWS_PER_CHUNK, shape_rows
from anchorlib.store.location import Location
from anchorlib.store.rows import StoredRows

__all__ = ["StoredVariant"]

Array = np.ndarray[Any, Any]
INT64 = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class StoredVariant:
    """One variant of a series whose group is at key `group`; `rows` are rows of its arrays."""

    location: Location
    group: str
    entry: Variant

    @property
    def values(self) -> StoredRows:
        """Its records, or the elements of all of them where it is flat."""
        storage = dtypes.dtype(self.entry.dtype).storage
        return self._array("", storage, self.entry.rows, self.entry.shape or ())

    def value(self, row: int) -> Array:
        """Raw storage of one record."""
        if self.entry.shape is not None:
            found: Array = self.values.span(row, row + 1)[0]
            return found
        offset, shape = self._place(row)
        return self.values.span(offset, offset + prod(shape)).reshape(shape)

    def blocks(self, row: int, nbytes: int) -> Iterator[Array]:
        """Raw storage of one record in C order, flat, at most `nbytes` at a time."""
        if self.entry.shape is not None:
            yield from self.values.blocks(row, nbytes)
            return
        offset, shape = self._place(row)
        end = offset + prod(shape)
        count = max(nbytes // self.values.nbytes, 1)
        for start in range(offset, end, count):
            yield self.values.span(start, min(start + count, end))

    def shapes(self, rows: Array) -> Array:
        """The shapes of records of a flat variant, (len(rows), ndim)."""
        ndim = self.entry.ndim
        found = self._array("_shape", INT64, shape_rows(ndim), (ndim,)).pick(rows)
        if (found < 0).any():
            raise StoreError(
                f"{escape(self.group)} has a negative shape: the store was damaged from outside"
            )
        return found

    def offsets(self, rows: Array) -> Array:
        """Where the elements of records of a flat variant begin, -1 where none are kept."""
        return self._offsets.pick(rows)

    def shape_set(self, rows: Array) -> set[tuple[int, ...]]:
        """The different shapes of these records."""
        if self.entry.shape is not None:
            return {self.entry.shape}
        return {tuple(shape) for shape in self.shapes(rows).tolist()}

    def shape_list(self, rows: Array) -> list[tuple[int, ...]]:
        """The shape of each of these records."""
        if self.entry.shape is not None:
            return [self.entry.shape] * len(rows)
        return [tuple(shape) for shape in self.shapes(rows).tolist()]

    def nbytes(self, rows: Array) -> int:
        """Bytes that the values of these records take."""
        units = len(rows)
        if self.entry.shape is None:
            units = int(np.prod(self.shapes(rows), axis=1, dtype=np.int64).sum())
        return units * self.values.nbytes

    def elements(self, rows: int) -> int:
        """Elements that the first `rows` records of a flat variant have together."""
        offsets = self._offsets.span(0, rows)
        kept = np.flatnonzero(offsets >= 0)
        if not len(kept):
            return 0
        shape = self.shapes(kept[-1:])[0]
        return int(offsets[kept[-1]]) + int(np.prod(shape))

    def _place(self, row: int) -> tuple[int, tuple[int, ...]]:
        """Where a record of a flat variant begins, and its shape."""
        offset = int(self._offsets.span(row, row + 1)[0])
        if offset < 0:
            raise StoreError(
                f"{escape(self.group)}: row {row} has no place: the store was damaged from outside"
            )
        return offset, tuple(self.shapes(np.array([row]))[0].tolist())

    @property
    def _offsets(self) -> StoredRows:
        return self._array("_offset", INT64, ROWS_PER_CHUNK)

    def _array(
        self, suffix: str, dtype: np.dtype[Any], rows: int, shape: tuple[int, ...] = ()
    ) -> StoredRows:
        return StoredRows(
            self.location, f"{self.group}/{self.entry.array}{suffix}", dtype, rows, shape
        )
