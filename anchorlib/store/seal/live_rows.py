"""Reads rows of sealed arrays, asked for by the row numbers that the rank's writer gave them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from anchorlib.errors import DamagedError
from anchorlib.names import escape
from anchorlib.store.locations import RowSource
from anchorlib.store.seal.sharded_elements import ShardedElements

__all__ = ["FlatRows", "SealedRows", "inverse_of"]

Array = np.ndarray[Any, Any]
_FAR_BYTES: Final = 1 << 16  # between two rows: nearer ones are read together


@dataclass(frozen=True, slots=True)
class SealedRows(RowSource):
    """Rows of an array as the rank's writer wrote it, read from the sealed array that holds them.

    Sealing makes a few compressed arrays, for an archive, of the many arrays that the writer wrote.
    The methods raise DamagedError where the array has no such rows, and where an object of the
    sealed array is missing or does not fit its checksums.

    count, shape: how many rows there are, and the shape of one row.
    places: for each row its index in the sealed array; None where sealing kept the order of rows.
    columns: where the sealed array is a stack of columns, the numbers of those columns that hold
        the entries of a row; else None.
    """

    elements: ShardedElements
    count: int
    shape: tuple[int, ...] = ()
    places: Array | None = None
    columns: Sequence[int] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array's elements."""
        return self.elements.array.dtype

    def span(self, start: int, stop: int) -> Array:
        """Return rows start … stop - 1, as an array of shape (stop - start, *shape)."""
        return self.pick(np.arange(start, stop))

    def pick(self, rows: Array) -> Array:
        """Return the given rows in the given order, shape (len(rows), *shape).

        rows: row numbers as the rank's writer counted them.
        """
        picked = np.empty((len(rows), *self.shape), self.dtype)
        if not picked.size:
            return picked
        if int(rows.min()) < 0 or int(rows.max()) >= self.count:
            raise self._beyond(int(rows.max()))
        places = rows if self.places is None else self.places[rows]
        if self.columns is None:
            self._take(places, 0, picked.reshape(len(rows), -1))
            return picked
        wide = picked.reshape(len(rows), -1)
        for at, column in enumerate(self.columns):
            self._take(places, column * self.count, wide[:, at : at + 1])
        return picked

    def part(self, row: int, start: int, stop: int) -> Array:
        """Return elements start … stop - 1 of row number `row` in C order, as a flat array."""
        if not 0 <= row < self.count:
            raise self._beyond(row)
        place = row if self.places is None else int(self.places[row])
        first = place * prod(self.shape)
        return next(self.elements.spans([(first + start, first + stop)]))

    def _take(self, places: Array, base: int, out: Array) -> None:
        """Fill `out`, (rows, width), with the rows at indices `places` of the sealed array.

        places: at least one index. base: the element of the sealed array at which the row with
            index 0 begins.
        """
        width = out.shape[1]
        if (np.diff(places) == 1).all():
            start = base + int(places[0]) * width
            out[:] = next(self.elements.spans([(start, start + out.size)])).reshape(out.shape)
            return
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        far = np.diff(ordered) * width * self.dtype.itemsize > _FAR_BYTES
        parts = np.split(np.arange(len(places)), np.flatnonzero(far) + 1)
        ends = [(int(ordered[part[0]]), int(ordered[part[-1]]) + 1) for part in parts]
        spans = [(base + first * width, base + last * width) for first, last in ends]
        for part, (first, _), data in zip(parts, ends, self.elements.spans(spans), strict=True):
            out[order[part]] = data.reshape(-1, width)[ordered[part] - first]

    def _beyond(self, row: int) -> DamagedError:
        array = escape(self.elements.array.key)
        return DamagedError(
            f"{self.elements.name}/{array} has {self.count} rows, and row {row} is asked for: the "
            "store was damaged from outside"
        )


@dataclass(frozen=True, slots=True)
class FlatRows(RowSource):
    """The elements of a flat form (records of many shapes, end to end), each element as a row.

    Rows are numbered as the rank's writer wrote the elements. They are read from a sealed
    (archived) array, which has the same elements in another order. The methods that read raise
    DamagedError where there is no such element, and where an object of the sealed array is missing
    or does not fit its checksums.

    written, starts, sizes: for each record with elements, where it begins in the array as written,
        where it begins in the sealed array, and how many elements it has; sorted by `written`.
    """

    elements: ShardedElements
    written: Array
    starts: Array
    sizes: Array

    @classmethod
    def of(cls, elements: ShardedElements, starts: Array, written: Array) -> FlatRows:
        """Make a FlatRows from where each record of a flat form (of many shapes) begins.

        starts: where each record begins in the sealed array, ascending; -1 for records without
            elements. written: where it began in the array before sealing.
        """
        kept = starts >= 0
        starts, written = starts[kept], written[kept]
        sizes = np.diff(starts, append=elements.array.grid.shape[0])
        order = np.argsort(written[sizes > 0], kind="stable")
        own = np.flatnonzero(sizes > 0)[order]
        return cls(elements, written[own], starts[own], sizes[own])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array's elements."""
        return self.elements.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row, which is a single element."""
        return ()

    @property
    def count(self) -> int:
        """How many elements the array had before sealing."""
        return int((self.written + self.sizes).max(initial=0))

    def span(self, start: int, stop: int) -> Array:
        """Return elements start … stop - 1, as they are numbered in the array before sealing."""
        pieces = [*self._pieces(start, stop)]
        if len(pieces) == 1:
            return next(self.elements.spans(pieces))
        entries, at = np.empty(stop - start, self.dtype), 0
        for data in self.elements.spans(pieces):
            entries[at : at + len(data)] = data
            at += len(data)
        return entries

    def pick(self, rows: Array) -> Array:
        """Return the elements at positions `rows` of the array before sealing, in this order."""
        entries = np.empty(len(rows), self.dtype)
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
            if len(run):
                entries[run] = self.span(int(rows[run[0]]), int(rows[run[-1]]) + 1)
        return entries

    def part(self, row: int, start: int, stop: int) -> Array:
        """Return elements row + start … row + stop - 1 of the array before sealing."""
        return self.span(row + start, row + stop)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges (first, end) of the sealed array that hold elements start … stop - 1.

        start, stop: positions in the array before sealing. Raises DamagedError where an element is
            missing.
        """
        at = int(np.searchsorted(self.written, start, side="right")) - 1
        while start < stop:
            offset = start - int(self.written[at]) if 0 <= at < len(self.written) else -1
            if not 0 <= offset < self.sizes[at]:
                raise DamagedError(
                    f"{self.elements.name}/{escape(self.elements.array.key)} has no element "
                    f"{start}: the store was damaged from outside"
                )
            count = min(int(self.sizes[at]) - offset, stop - start)
            first = int(self.starts[at]) + offset
            yield first, first + count
            start, at = start + count, at + 1


def inverse_of(written: Array, key: str) -> Array:
    """Return the inverse permutation of `written`: where each row is in the sealed array.

    Entry r of the result is the index, in the sealed array, of the row that had number r before
    sealing.
    written: for each index in the sealed array, the number that the row had before sealing.
    key: the key of the array, for errors.
    Raises DamagedError where `written` is no permutation.
    """
    count = len(written)
    if count and (int(written.min()) < 0 or int(written.max()) >= count):
        raise DamagedError(f"the labels of {escape(key)} speak of rows that there are not")
    sealed_places: Array = np.full(count, -1, np.int64)
    sealed_places[written] = np.arange(count)
    if (sealed_places < 0).any():
        raise DamagedError(f"the labels of {escape(key)} speak of the same row twice")
    return sealed_places
