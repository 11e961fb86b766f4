"""Reads the values of a form from its arrays: complete rows, or spans of a flat form's elements.

A form is the records of one dtype and shape; a flat form holds records of many shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.format import ROWS_PER_CHUNK, Form, shape_rows
from anchorlib.store.locations import Location
from anchorlib.store.stored.rows import StoredRows

__all__ = ["StoredForm"]

Array = np.ndarray[Any, Any]
INT64 = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class StoredForm:
    """Reads the values of one form of the rank at `location`.

    A form is the records of one dtype and shape; a flat form holds records of many shapes. Row
    numbers in the methods are rows of the form's arrays, not of the rank's table. Raw values are
    elements as they are stored, in a dtype that numpy has: bfloat16 as uint16, for example.
    """

    location: Location
    entry: Form

    @property
    def values(self) -> StoredRows:
        """The array with the values of all records of this form (dtype and shape), a record a row.

        In a flat form, whose records have many shapes, each row is one element.
        """
        storage = dtypes.dtype(self.entry.dtype).storage
        return self._array(str(self.entry.array), storage, self.entry.rows, self.entry.shape or ())

    def value(self, row: int) -> Array:
        """Return the raw stored values of one record.

        Raises StoreError where the form is flat and no values of the record are kept.
        row: the record's row in the form's arrays.
        """
        if self.entry.shape is not None:
            value: Array = self.values.span(row, row + 1)[0]
            return value
        offset, shape = self._place(row)
        count = prod(shape)
        return self.values.span(offset, offset + count).reshape(shape)

    def blocks(self, row: int, nbytes: int) -> Iterator[Array]:
        """Yield the raw stored values of one record in C order, as flat arrays.

        Each array takes at most `nbytes` bytes, but has at least one element. row: the record's row
        in the form's arrays.
        """
        if self.entry.shape is not None:
            yield from self.values.blocks(row, nbytes)
            return
        offset, shape = self._place(row)
        end = offset + prod(shape)
        count = max(nbytes // self.values.nbytes, 1)
        for start in range(offset, end, count):
            yield self.values.span(start, min(start + count, end))

    def label(self, name: str, rows: Array) -> Array:
        """Return the label `name`, such as "step", stored beside the values of these records.

        The array has an int64 for each of `rows`, which are rows of the form's arrays; a missing
        file reads as zeros.
        """
        key = f"{self.entry.group}/{dict(self.entry.labels)[name]}"
        array = StoredRows(self.location, key, INT64, self.entry.label_rows, blank=True)
        return array.pick(rows)

    def shapes(self, rows: Array) -> Array:
        """Return the shapes of records of a flat form, one row for each record.

        A row has as many numbers as the form stores for any shape (`entry.ndim`), with -1 behind
        the end of a shape. Raises StoreError for a damaged shape.
        """
        ndim = self.entry.ndim
        shapes = self._array(self.entry.shapes, INT64, shape_rows(ndim), (ndim,)).pick(rows)
        beyond = shapes < 0
        # Behind the end of a shape every number is -1; format 1 has no such numbers.
        if (beyond[:, :-1] > beyond[:, 1:]).any() or (shapes < -1).any():
            raise StoreError(
                f"{escape(self.entry.group)} has a negative shape: the store was damaged from "
                "outside"
            )
        return shapes

    def offsets(self, rows: Array) -> Array:
        """Return where each record's elements begin in a flat form; -1 where none are kept.

        A flat form holds records of many shapes, their elements end to end. rows: rows of the
        form's arrays.
        """
        return self._offsets.pick(rows)

    def shape_set(self, rows: Array) -> set[tuple[int, ...]]:
        """Return the different shapes of the records in these rows of the form's arrays."""
        if self.entry.shape is not None:
            return {self.entry.shape}
        return set(_trimmed(self.shapes(rows)))

    def shape_list(self, rows: Array) -> list[tuple[int, ...]]:
        """Return the shape of the record in each of these rows of the form's arrays."""
        if self.entry.shape is not None:
            return [self.entry.shape] * len(rows)
        return _trimmed(self.shapes(rows))

    def nbytes(self, rows: Array) -> int:
        """Return how many bytes the values of these records take together.

        rows: their rows in the form's arrays.
        """
        units = len(rows)
        if self.entry.shape is None:
            shapes = self.shapes(rows)
            units = int(np.where(shapes < 0, 1, shapes).prod(axis=1, dtype=np.int64).sum())
        return units * self.values.nbytes

    def elements(self, rows: int) -> int:
        """Return how many elements the first `rows` records of a flat form have together.

        A flat form holds records of many shapes, their elements end to end. Records without values
        count nothing.
        """
        offsets = self._offsets.span(0, rows)
        kept = np.flatnonzero(offsets >= 0)
        if not len(kept):
            return 0
        (shape,) = _trimmed(self.shapes(kept[-1:]))
        return int(offsets[kept[-1]]) + prod(shape)

    def _place(self, row: int) -> tuple[int, tuple[int, ...]]:
        """Return (offset of the first element, shape) of a record in a flat form.

        A flat form holds records of many shapes, their elements end to end. row: the record's row
        in the form's arrays. Raises StoreError where no values of the record are kept.
        """
        offset = int(self._offsets.span(row, row + 1)[0])
        if offset < 0:
            raise StoreError(
                f"{escape(self.entry.group)}: row {row} has no place: the store was damaged from "
                "outside"
            )
        return offset, _trimmed(self.shapes(np.array([row])))[0]

    @property
    def _offsets(self) -> StoredRows:
        return self._array(self.entry.starts, INT64, ROWS_PER_CHUNK)

    def _array(
        self, name: str, dtype: np.dtype[Any], rows: int, shape: tuple[int, ...] = ()
    ) -> StoredRows:
        return StoredRows(self.location, f"{self.entry.group}/{name}", dtype, rows, shape)


def _trimmed(shapes: Array) -> list[tuple[int, ...]]:
    """Return stored shapes as tuples, without the -1 that pad them."""
    dims = (shapes >= 0).sum(axis=1).tolist()
    return [tuple(shape[:count]) for shape, count in zip(shapes.tolist(), dims, strict=True)]
