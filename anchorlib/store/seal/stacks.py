"""Columns of one dtype stacked in one array, so that a table becomes only a few objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.store.format import ROWS_PER_CHUNK, stamp
from anchorlib.store.seal.arrays import Elements, SealedArray, Written
from anchorlib.store.seal.chunk_grid import Grid
from anchorlib.store.seal.codecs import TABLES

__all__ = ["Stack", "StackedColumn"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class StackedColumn:
    """One column of a stack (columns of one dtype in one array).

    entries: a function that returns the column's entries in rows start … stop - 1. serves: the key
        of the array that held these entries before sealing; None where no array did.
    """

    entries: Elements
    serves: str | None

    @classmethod
    def of(cls, entries: Array, serves: str | None) -> StackedColumn:
        """Return a column whose entries are in memory."""
        return cls(lambda start, stop: entries[start:stop], serves)


@dataclass(frozen=True, slots=True)
class Stack:
    """Columns of one dtype by their names, each with `rows` entries, to be written as one array.

    is_sorted: whether the records are sorted by series; one of the columns then holds the row
        number that each record had before sealing.
    """

    key: str
    dtype: np.dtype[Any]
    rows: int
    columns: Mapping[str, StackedColumn]
    is_sorted: bool = False

    def written(self) -> Written:
        """Return the description of the stack's sealed array, of shape (column, record)."""
        array = SealedArray(
            self.key,
            self.dtype,
            Grid.of((len(self.columns), self.rows), self.dtype.itemsize),
            tuple(column.serves for column in self.columns.values()),
            ROWS_PER_CHUNK,
            columns=tuple(self.columns),
            sorted_by=self.key if self.is_sorted else None,
        )
        return Written(array, ("column", "record"), TABLES, stamp(columns=list(self.columns)))

    def elements(self, start: int, stop: int) -> Array:
        """Return elements start … stop - 1 of the stack's array, in C order, as a flat array.

        In this order all entries of the first column come first, then those of the second column.
        """
        columns, at = list(self.columns.values()), 0
        entries = np.empty(stop - start, self.dtype)  # np.concatenate would lose the byte order
        while start < stop:
            number, first = divmod(start, self.rows)
            last = min(first + stop - start, self.rows)
            entries[at : at + last - first] = columns[number].entries(first, last)
            at += last - first
            start += last - first
        return entries
