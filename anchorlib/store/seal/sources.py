"""Reads the values of a live rank's form sorted by series, and checks them by their digests.

A live rank is one as its writer wrote it, not sealed (compressed for an archive) yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np
import xxhash

from anchorlib.errors import DamagedError
from anchorlib.store.format import LABELS, Form
from anchorlib.store.locations import Location
from anchorlib.store.seal.chunk_grid import SHARD_BYTES
from anchorlib.store.stored import UNFIT, RankRecords, StoredForm, damage

__all__ = ["INT64", "SortedForm", "series_ranges", "sorted_form"]

Array = np.ndarray[Any, Any]
INT64: Final = np.dtype("<i8")
_TOGETHER: Final = SHARD_BYTES // 2  # records of a flat form within this many bytes are one read


@dataclass(frozen=True, slots=True)
class SortedForm:
    """The records of one form (of one dtype and shape, or flat: of many shapes), sorted by series.

    Records without a row in the form's arrays are left out. All arrays have one entry per record.
    rows: row numbers in the rank's table. places: row numbers in the form's arrays, as written.
    starts, sizes: in a flat form, where each record's elements begin in the array as written, and
        how many it has; -1 and 0 where none are kept.
    shapes: in a flat form, the shape of each record as a row of numbers, padded with -1.
    """

    reader: RankRecords
    stored: StoredForm
    rows: Array
    places: Array
    starts: Array
    sizes: Array
    shapes: Array

    @property
    def entry(self) -> Form:
        """The form (dtype and shape) as the catalogue describes it."""
        return self.stored.entry

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored values."""
        return self.stored.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of these values in the sealed rank."""
        if self.entry.shape is None:
            return (int(self.sizes.sum()),)
        return (len(self.rows), *self.entry.shape)

    @property
    def ends(self) -> Array:
        """For each record, the index behind its last element in the flat sealed array."""
        if self.entry.shape is None:
            ends: Array = np.cumsum(self.sizes)
            return ends
        return np.arange(1, len(self.rows) + 1) * prod(self.entry.shape)

    def labels(self) -> dict[str, Array]:
        """Return the labels of the records: by name, an int64 array with an entry per record.

        The names are "series", "step", "pass_index", "call", and "written_row", each record's row
        in the form's arrays as written. In a flat form (of many shapes) also "start" and
        "written_start", where each record's elements begin in the sealed array and in the array as
        written, and "shape_0", "shape_1" and so on, the numbers of its shape.
        """
        reader = self.reader
        labels = {name: reader.column(name)[self.rows].astype(INT64) for name in LABELS[1:]}
        labels = {"series": reader.series_ids[self.rows].astype(INT64), **labels}
        labels["written_row"] = self.places
        if self.entry.flat:
            labels["start"] = np.where(self.starts < 0, -1, self.ends - self.sizes)
            labels["written_start"] = self.starts
            for axis, sizes in enumerate(self.shapes.T):
                labels[f"shape_{axis}"] = sizes
        return labels

    def values(self) -> Values:
        """Return a function f(start, stop) that reads elements of the future sealed array.

        The caller must ask for ascending ranges. The function raises DamagedError for values that
        do not fit their digests.
        """
        return Values(self)


class Values:
    """Reads values in the order of the sealed array; raises if they do not fit their digests.

    A digest is the hash of all values of one record, made when the record was captured.
    """

    def __init__(self, form: SortedForm) -> None:
        self._form = form
        self._ends = form.ends
        self._record = 0
        self._element = 0
        self._hasher = xxhash.xxh3_128()

    def __call__(self, start: int, stop: int) -> Array:
        """Return elements start … stop - 1 of the sealed rank's array, flat; ranges must ascend.

        Raises DamagedError where a record that ends among them does not fit its digest.
        """
        form = self._form
        size = prod(form.entry.shape or ())
        if not form.entry.flat and not start % size and not stop % size:
            values: Array = form.reader.stack(form.rows[start // size : stop // size])
            return values.reshape(-1)
        data = np.empty(stop - start, form.dtype)
        at = 0
        for part in self._flat(start, stop) if form.entry.flat else self._parts(start, stop, size):
            data[at : at + len(part)] = part
            at += len(part)
        self._check(data)
        return data

    def _parts(self, start: int, stop: int, size: int) -> Iterator[Array]:
        """Yield elements start … stop - 1 of records of `size` elements, read piece by piece.

        Used where a range begins or ends inside a record, as records larger than a shard make it.
        """
        while start < stop:
            record, first = divmod(start, size)
            count = min(size - first, stop - start)
            place = int(self._form.places[record])
            yield self._form.stored.values.part(place, first, first + count)
            start += count

    def _flat(self, start: int, stop: int) -> Iterator[Array]:
        """Yield elements start … stop - 1 of a flat form (many shapes), record by record.

        In the array as the writer wrote it, records of other series lie between the records of one
        series. Wanted records that lie near each other in that array are read by one call.
        """
        form, values = self._form, self._form.stored.values
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        ends = self._ends[first : last + 1]
        begins = ends - form.sizes[first : last + 1]
        kept = ends > begins
        low = np.maximum(begins, start)[kept]
        high = np.minimum(ends, stop)[kept]
        source = (form.starts[first : last + 1][kept] + low - begins[kept]).tolist()
        counts = (high - low).tolist()
        base, top = min(source), max(at + n for at, n in zip(source, counts, strict=True))
        if (top - base) * values.nbytes <= _TOGETHER:
            near = values.span(base, top)
            yield from (near[a - base : a - base + n] for a, n in zip(source, counts, strict=True))
            return
        yield from (values.span(at, at + n) for at, n in zip(source, counts, strict=True))

    def _check(self, data: Array) -> None:
        """Hash these elements, and compare the hash of each record that ends among them.

        The running hash of a record that does not end among them is kept for the next call. Raises
        DamagedError where a record does not fit its digest.
        """
        raw = data.view(np.uint8).data
        at, width = 0, data.dtype.itemsize
        while at < len(data) or self._is_done():
            if self._is_done():
                self._finish()
                continue
            count = min(int(self._ends[self._record]) - self._element, len(data) - at)
            self._hasher.update(raw[at * width : (at + count) * width])
            at += count
            self._element += count

    def _is_done(self) -> bool:
        return self._record < len(self._ends) and self._element == self._ends[self._record]

    def _finish(self) -> None:
        form, row = self._form, int(self._form.rows[self._record])
        high, low = (int(form.reader.cell(f"digest_{n}", row)) for n in ("high", "low"))
        digest = high.to_bytes(8, "big") + low.to_bytes(8, "big")
        kept = not form.entry.flat or form.starts[self._record] >= 0
        if kept and self._hasher.digest() != digest:
            raise damage(form.reader, row, UNFIT)
        self._hasher.reset()
        self._record += 1


def sorted_form(reader: RankRecords, location: Location, entry: Form) -> SortedForm | None:
    """Return the records of a form (one dtype and shape) sorted by series, then as written.

    Return None where the form has no array of values, as no values were stored. location: that of
    the rank. entry: the form. Raises DamagedError where a row of the form's arrays belongs to no
    record, or to two records.
    """
    if entry.array is None:
        return None
    places = reader.column("row")
    rows = np.flatnonzero((reader.column("form") == entry.id) & (places >= 0))
    rows = rows[np.lexsort([places[rows], reader.series_ids[rows]])]
    own = places[rows]
    if (np.sort(own) != np.arange(len(own))).any():
        raise DamagedError(
            f"rank {reader.rank}: the rows of {entry.group} do not follow one another: the store "
            "was damaged from outside"
        )
    stored = StoredForm(location, entry)
    starts = sizes = np.empty(0, np.int64)
    shapes = np.empty((0, 0), np.int64)
    if entry.flat:
        starts, shapes = stored.offsets(own), stored.shapes(own)
        counts = np.where(shapes < 0, 1, shapes).prod(axis=1, dtype=np.int64)
        sizes = np.where(starts < 0, 0, counts)
    return SortedForm(reader, stored, rows, own, starts, sizes, shapes)


def series_ranges(numbers: Array) -> dict[int, tuple[int, int]]:
    """Return for each series the range [first, end) of its records.

    numbers: the series number of each record, sorted.
    """
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return {int(numbers[a]): (a, b) for a, b in pairwise(cuts) if a < b}
