"""Reads rows of an array back from its chunk files, which `write.slots` writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from anchorlib.errors import DamagedError, StoreError
from anchorlib.names import escape
from anchorlib.store.format import COLUMNS, ROWS_PER_CHUNK, chunk_key, chunk_number
from anchorlib.store.locations import Location, RowSource, read_into, rows_at

__all__ = ["StoredRows", "committed_rows"]

Array = np.ndarray[Any, Any]
FAR_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredRows:
    """One stored array, read from chunk files of `rows` rows each.

    location, key: the array's folder is at `key` in `location`. dtype, shape: of one row.
    blank: whether a chunk without a file counts as zeros; otherwise its rows raise DamagedError.
    """

    location: Location
    key: str
    dtype: np.dtype[Any]
    rows: int = ROWS_PER_CHUNK
    shape: tuple[int, ...] = ()
    blank: bool = False

    @property
    def nbytes(self) -> int:
        """How many bytes one row has."""
        return self.dtype.itemsize * prod(self.shape)

    def span(self, start: int, stop: int) -> Array:
        """Return rows start … stop - 1, as an array of shape (stop - start, *shape).

        Raises DamagedError where a chunk file is too short, or is missing and `blank` is False;
        StoreError where the rows do not fit into memory.
        """
        if (source := self._source()) is not None:
            return source.span(start, stop)
        entries = self._room(stop - start)
        if not entries.nbytes:
            return entries
        view = entries.reshape(-1).view(np.uint8).data
        place, width = start, self.nbytes
        while place < stop:
            chunk, slot = divmod(place, self.rows)
            count = min(self.rows - slot, stop - place)
            at = (place - start) * width
            self._read(chunk, slot * width, view[at : at + count * width])
            place += count
        return entries

    def pick(self, rows: Array) -> Array:
        """Return the given rows in the given order, as an array of shape (len(rows), *shape).

        rows: row numbers. Raises DamagedError where a chunk file is too short, or is missing and
            `blank` is False; StoreError where the rows do not fit into memory.
        """
        if (source := self._source()) is not None:
            return source.pick(rows)
        if len(rows) and _are_consecutive(rows):
            return self.span(int(rows[0]), int(rows[-1]) + 1)
        picked = self._room(len(rows))
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        chunks, slots = np.divmod(ordered, self.rows)
        # Rows in between that are not wanted are read too, where that is cheaper than another read.
        far = np.diff(ordered) * self.nbytes > FAR_BYTES
        cuts = np.flatnonzero(far | (np.diff(chunks) > 0)) + 1
        for part in np.split(np.arange(len(rows)), cuts) if len(rows) else ():
            first, last = int(slots[part[0]]), int(slots[part[-1]])
            values = self._part(int(chunks[part[0]]), first, last - first + 1)
            picked[order[part]] = values[slots[part] - first]
        return picked

    def blocks(self, row: int, nbytes: int) -> Iterator[Array]:
        """Yield the elements of row number `row` in C order, as flat arrays.

        Each array takes at most `nbytes` bytes, but has at least one element.
        """
        size, count = prod(self.shape), max(nbytes // self.dtype.itemsize, 1)
        for start in range(0, size, count):
            yield self.part(row, start, min(start + count, size))

    def part(self, row: int, start: int, stop: int) -> Array:
        """Return elements start … stop - 1 of row number `row` in C order, as a flat array.

        Raises DamagedError where the chunk file is too short, or is missing and `blank` is False.
        """
        if (source := self._source()) is not None:
            return source.part(row, start, stop)
        chunk, slot = divmod(row, self.rows)
        elements = np.empty(stop - start, self.dtype)
        place = slot * self.nbytes + start * self.dtype.itemsize
        self._read(chunk, place, elements.view(np.uint8).data)
        return elements

    def _source(self) -> RowSource | None:
        """Return what reads this array of a sealed (archived) rank; None for other ranks.

        In a sealed rank the array's rows are not in chunk files. Raises DamagedError where the rows
        of the returned object would have another shape or dtype than this array.
        """
        source = rows_at(self.location, self.key)
        if source is not None and (source.dtype, source.shape) != (self.dtype, self.shape):
            raise DamagedError(
                f"{escape(self.key)} has other rows than the catalogue says: the store was damaged "
                "from outside"
            )
        return source

    def _part(self, chunk: int, slot: int, count: int) -> Array:
        size = count * self.nbytes
        if size == 0:
            return self._room(count)
        entries = self._room(count)
        self._read(chunk, slot * self.nbytes, entries.reshape(-1).view(np.uint8).data)
        return entries

    def _room(self, count: int) -> Array:
        """Return an uninitialized array for `count` rows.

        Raises StoreError if there is not enough memory.
        """
        try:
            return np.empty((count, *self.shape), self.dtype)
        except (MemoryError, ValueError, OverflowError) as error:
            raise StoreError(
                f"{escape(self.key)}: {count} rows of {self.nbytes} bytes do not fit into memory"
            ) from error

    def _read(self, chunk: int, start: int, out: memoryview) -> None:
        """Fill `out` with bytes of the file of one chunk, from byte `start` on.

        A missing file reads as zeros where this array allows that (`blank`). Otherwise a missing
        file, and always a file that ends before `out` is full, raises DamagedError.
        """
        key = f"{self.key}/{chunk_key(chunk, len(self.shape))}"
        size = read_into(self.location, key, start, out)
        if size is None and self.blank:
            out[:] = bytes(len(out))
        elif size != len(out):
            have = "is missing" if size is None else f"is {len(out) - size} bytes short"
            raise DamagedError(f"{escape(key)} {have}: the store was damaged from outside")


def _are_consecutive(rows: Array) -> bool:
    return int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def committed_rows(location: Location, records: str, known: int = 0) -> int:
    """Return how many rows of the table at key `records` are committed.

    A row is committed when its entry of column `seq` is its row number + 1, and so are the entries
    of all rows before it.
    known: how many rows were found committed before; these are not read again.
    """
    seq = f"{records}/seq"
    chunk, slot = divmod(known, ROWS_PER_CHUNK)
    count = _count(location, seq, chunk, slot)
    if count < (chunk + 1) * ROWS_PER_CHUNK:
        return count
    # A chunk is filled before the next one is begun, so only the last one can be unfinished.
    chunks = (chunk_number(name) for name in location.list(seq))
    for last in sorted((n for n in chunks if n is not None and n > chunk), reverse=True):
        committed = _count(location, seq, last, 0)
        if committed > last * ROWS_PER_CHUNK:
            return committed
    return count


def _count(location: Location, seq: str, chunk: int, slot: int) -> int:
    dtype = COLUMNS["seq"]
    room = (ROWS_PER_CHUNK - slot) * dtype.itemsize
    data = location.get(f"{seq}/{chunk_key(chunk, 0)}", slot * dtype.itemsize, room) or b""
    numbers = np.frombuffer(data[: len(data) // 8 * 8], dtype)
    base = chunk * ROWS_PER_CHUNK + slot
    wrong = np.flatnonzero(numbers != np.arange(base + 1, base + 1 + len(numbers), dtype=np.uint64))
    return base + (int(wrong[0]) if len(wrong) else len(numbers))
