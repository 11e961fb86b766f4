"""Methods about the rows of one rank, shared by its readers: columns, shapes, values, histograms.

The readers are `rank`, which reads from one location, and `joined`, which reads from the parts
of a rank. Values are compared with their digests (hashes) as they are read, except where a method
says otherwise. A form is what records of one dtype and shape have in common; a flat form holds
records of one dtype and many shapes, their elements end to end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import DamagedError
from anchorlib.record import Gap
from anchorlib.store.format import COLUMNS, NOT_KEPT, Catalogue, Form
from anchorlib.store.read.column_memory import ColumnMemory
from anchorlib.store.stored import UNFIT, StoredForm, damage, unfit
from anchorlib.summary import Log2Histogram, log2_histogram

__all__ = ["RankTable"]

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 16 << 20
_MOST: Final = (1 << 63) - 1


class RankTable(ABC):
    """The committed rows of one rank: their columns, shapes, values and histograms.

    run: the name of the run in error messages. committed: how many rows there are.
    In most methods `rows` is an array of row numbers of the rank's table, and results are in its
    order. Raw values are elements as they are stored, in a dtype that numpy has: bfloat16 as
    uint16, for example.
    """

    run: str
    rank: int
    part: int
    catalogue: Catalogue
    committed: int
    column_memory: ColumnMemory | None = None
    """The limit that the bytes of cached columns count towards; None caches all that was read."""
    _columns: dict[str, Array]

    @property
    @abstractmethod
    def is_current(self) -> bool:
        """Whether the rank was not overwritten or removed since it was opened."""

    @abstractmethod
    def span(self, name: str, start: int, stop: int) -> Array:
        """Return entries `start` to `stop` - 1 of the column `name`, without caching them."""

    @abstractmethod
    def check_rows(self, rows: Array) -> None:
        """Raise DamagedError where one of the rows numbered `rows` does not fit its checksum."""

    @abstractmethod
    def _pairs(self, offsets: Array, lengths: Array) -> tuple[Array, Array]:
        """Return exponents and counts of the histogram pairs of some rows, as two flat arrays.

        A pair is a bin: (exponent, count). The pairs of the first row come first.
        offsets, lengths: for each row, the index of its first pair in the columns of pairs, and how
        many pairs it has (none if negative).
        """

    @abstractmethod
    def _stored(self, form: Form) -> StoredForm:
        """Return the stored arrays of a form, that is, of the records of one dtype and shape."""

    def column(self, name: str) -> Array:
        """Return the entries of column `name` in all committed rows, in the order of the rows.

        The column is cached. Raises DamagedError for an entry that is larger than any that a writer
        stores.
        """
        known = self._columns.get(name)
        have = 0 if known is None else len(known)
        if known is None or have < self.committed:
            fresh = self.span(name, have, self.committed)
            self._check_bound(name, fresh)
            known = fresh if known is None else np.concatenate([known, fresh])
            self._columns[name] = known
            if self.column_memory is not None:
                kept = list(self._columns.values())
                self.column_memory.take(self, sum(column.nbytes for column in kept))
        return known[: self.committed]

    def let_go(self) -> None:
        """Drop the cached columns, to free memory; they are read again when they are needed."""
        self._columns = {}

    def _check_bound(self, name: str, values: Array) -> None:
        """Raise DamagedError where one of a column's entries is larger than a writer ever stores.

        values: the entries. Only columns of unsigned numbers are checked, and no digests.
        """
        if values.dtype.kind != "u" or name.startswith("digest"):
            return
        bound = len(self.catalogue.phases) - 1 if name == "phase" else _MOST
        if len(values) and int(values.max()) > bound:
            raise DamagedError(
                f"rank {self.rank} says {values.max()} in column {name}, which is {bound} at most: "
                "the store was damaged from outside"
            )

    def cell(self, name: str, row: int) -> Any:
        """Return the entry of column `name` in row number `row`."""
        return self.column(name)[row]

    @property
    def series_ids(self) -> Array:
        """The series number of each committed row."""
        return self.column("series")

    def kept(self, rows: Array) -> Array:
        """Return a bool for each of these rows: whether its values are stored, beside a summary."""
        kept: Array = (self.column("flags")[rows] & NOT_KEPT) == 0
        return kept

    def dtype_set(self, rows: Array) -> list[str]:
        """Return the different dtypes of these rows, in the order of their forms' numbers."""
        return list(dict.fromkeys(stored.entry.dtype for stored, _ in self._by_form(rows)))

    def dtypes(self, rows: Array) -> list[str]:
        """Return the dtype of each of these rows."""
        forms = self.catalogue.forms
        return [forms[number].dtype for number in self.column("form")[rows]]

    def shapes(self, rows: Array) -> list[tuple[int, ...]]:
        """Return the tensor shape of each of these rows."""
        shapes: list[tuple[int, ...]] = [()] * len(rows)
        for stored, places in self._by_form(rows):
            of_form = stored.shape_list(self.column("row")[rows[places]])
            for place, shape in zip(places.tolist(), of_form, strict=True):
                shapes[place] = shape
        return shapes

    def shapes_between(self, start: int, stop: int) -> list[tuple[int, ...]]:
        """Return the tensor shape of each of rows `start` to `stop` - 1; no column is cached."""
        numbers, rows = self.span("form", start, stop), self.span("row", start, stop)
        shapes: list[tuple[int, ...]] = [()] * len(rows)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            stored = self._stored(self.catalogue.forms[number])
            of_form = stored.shape_list(rows[places])
            for place, shape in zip(places.tolist(), of_form, strict=True):
                shapes[place] = shape
        return shapes

    def shape_set(self, rows: Array) -> set[tuple[int, ...]]:
        """Return the set of the different tensor shapes of these rows."""
        parts = self._by_form(rows)
        sets = (stored.shape_set(self.column("row")[rows[places]]) for stored, places in parts)
        return set().union(*sets)

    def forms(self, rows: Array) -> set[tuple[str, tuple[int, ...]]]:
        """Return the different (dtype, shape) pairs of the tensors in these rows."""
        return {
            (stored.entry.dtype, shape)
            for stored, places in self._by_form(rows)
            for shape in stored.shape_set(self.column("row")[rows[places]])
        }

    def shape_codes(self, rows: Array) -> tuple[list[tuple[int, ...]], Array]:
        """Return the different shapes of these rows, and each row's index in that list."""
        codes_of_shapes: dict[tuple[int, ...], int] = {}
        codes = np.empty(len(rows), np.int64)
        for stored, places in self._by_form(rows):
            if stored.entry.shape is not None:
                codes[places] = codes_of_shapes.setdefault(stored.entry.shape, len(codes_of_shapes))
                continue
            own = stored.shape_list(self.column("row")[rows[places]])
            codes[places] = [
                codes_of_shapes.setdefault(shape, len(codes_of_shapes)) for shape in own
            ]
        return list(codes_of_shapes), codes

    def stored_bytes(self, rows: Array) -> int:
        """Return how many bytes the stored values of these rows have together."""
        rows = rows[self.kept(rows)]
        parts = self._by_form(rows)
        return sum(stored.nbytes(self.column("row")[rows[places]]) for stored, places in parts)

    def stack(self, rows: Array) -> Array:
        """Return the raw stored values of rows of one dtype and shape, as (len(rows), *shape).

        There must be at least one row, and the values of all rows must be stored (`kept`). Raises
        DamagedError for values that do not fit their digests or can no longer be read.
        """
        try:
            values = self.unchecked_stack(rows)
        except DamagedError:
            for row in rows.tolist():
                self.raw(row)  # raises an error that names the damaged record
            raise
        return self._checked(rows, values)

    def unchecked_stack(self, rows: Array) -> Array:
        """Return the raw stored values of rows of one dtype and shape, as (len(rows), *shape).

        The values are not compared with their digests: the caller has to do so. There must be at
        least one row.
        """
        (first, places), *others = self._by_form(rows)
        if not others and first.entry.shape is not None:
            return first.values.pick(self.column("row")[rows])
        storage = dtypes.dtype(first.entry.dtype).storage
        shape = first.shape_list(self.column("row")[rows[places[:1]]])[0]
        values = np.empty((len(rows), prod(shape)), storage)
        self.flat_stack(rows, values)
        return values.reshape(len(rows), *shape)

    def flat_stack(self, rows: Array, out: Array) -> None:
        """Fill `out`, (len(rows), size), with the raw stored values of rows of one dtype and size.

        size: how many elements each row has, in C order. The rows may differ in series and shape.
        Values are not compared with their digests: the caller has to do so.
        """
        for stored, places in self._by_form(rows):
            own = self.column("row")[rows[places]]
            if not stored.entry.flat:
                out[places] = stored.values.pick(own).reshape(len(own), -1)
                continue
            starts = stored.offsets(own).tolist()
            for place, start in zip(places.tolist(), starts, strict=True):
                out[place] = stored.values.span(start, start + out.shape[1])

    def raw(self, row: int) -> Array:
        """Return the raw stored values of row number `row`, which must be stored (`kept`).

        Raises DamagedError for values that do not fit their digest or can no longer be read.
        """
        try:
            value = self.unchecked(row)
        # With a damaged place or shape numpy is asked for an array that cannot exist.
        except (DamagedError, ValueError, OverflowError) as error:
            raise damage(self, row, str(error)) from error
        self._checked(np.array([row]), value[None])
        return value

    def unchecked(self, row: int) -> Array:
        """Return the raw stored values of one row, not compared with their digest.

        Raises StoreError where the values are not stored or cannot be read; ValueError or
        OverflowError where the stored place or shape of the record is damaged.
        """
        return self._stored(self._form(row)).value(int(self.column("row")[row]))

    def raw_blocks(self, row: int, nbytes: int) -> Iterator[Array]:
        """Yield the raw stored values of one row as flat blocks of at most `nbytes`, in C order.

        The values are not compared with their digest.
        """
        stored = self._stored(self._form(row))
        return stored.blocks(int(self.column("row")[row]), nbytes)

    def unfit(self, rows: Array, values: Array) -> list[int]:
        """Return the indices into `rows` of those rows whose values do not fit their digests.

        values: the raw values of each row, (len(rows), *shape).
        """
        digests = np.empty((len(rows), 2), COLUMNS["digest_high"])
        digests[:, 0], digests[:, 1] = (self.column(f"digest_{n}")[rows] for n in ("high", "low"))
        return unfit(values, digests.tobytes())

    def _checked(self, rows: Array, values: Array) -> Array:
        for place in self.unfit(rows, values):
            raise damage(self, int(rows[place]), UNFIT)
        return values

    def flat_elements(self, form: Form, rows: int) -> int:
        """Return how many elements the first `rows` records of a flat form have together.

        A flat form holds records of many shapes, their elements end to end, in the order in which
        they were written.
        """
        return self._stored(form).elements(rows)

    def histograms(self, rows: Array) -> list[Log2Histogram]:
        """Return the log2 histogram of each of these rows: as stored, or computed from the values.

        Raises DamagedError where a row does not fit its checksum, or values that are read do not
        fit their digest.
        """
        self.check_rows(rows)
        lengths = self.column("hist_length")[rows]
        ends = np.cumsum(np.maximum(lengths, 0))
        exponents, counts = self._pairs(self.column("hist_offset")[rows], lengths)
        figures = [self.column(name)[rows].tolist() for name in ("zero", "nan", "inf", "subnormal")]
        histograms = []
        for place, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
            if length < 0:
                row = int(rows[place])
                histograms.append(log2_histogram(self.raw(row), self._form(row).dtype))
                continue
            zero, nan, inf, subnormal = (figure[place] for figure in figures)
            bins = (exponents[end - length : end], counts[end - length : end])
            one = Log2Histogram.from_pairs(*bins, zero=zero, nan=nan, inf=inf, subnormal=subnormal)
            histograms.append(one)
        return histograms

    def bins(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return three parallel arrays over every bin of the histograms of these rows.

        The arrays hold, for each bin, the row's index in `rows`, the exponent and the count. Raises
        DamagedError as `histograms` does.
        """
        self.check_rows(rows)
        lengths = self.column("hist_length")[rows]
        own = lengths >= 0
        exponents, counts = self._pairs(self.column("hist_offset")[rows[own]], lengths[own])
        parts: list[tuple[Array, Array, Array]] = [
            (np.repeat(np.flatnonzero(own), lengths[own]), exponents, counts)
        ]
        for place in np.flatnonzero(~own).tolist():  # a few values, from which it is counted
            count_of_exponent = self.histograms(rows[place : place + 1])[0].bins
            own_bins = np.array([*count_of_exponent.items()], np.int64).reshape(-1, 2)
            parts.append((np.full(len(count_of_exponent), place), own_bins[:, 0], own_bins[:, 1]))
        places, exponents, counts = (
            np.concatenate([part[at].astype(np.int64) for part in parts]) for at in range(3)
        )
        return places, exponents, counts

    def pooled_pairs(self, rows: Array) -> Log2Histogram:
        """Return one histogram of all elements of these rows, each of which must have one stored.

        Raises DamagedError where rows do not fit their checksums.
        """
        self.check_rows(rows)
        lengths = self.column("hist_length")[rows]
        exponents, counts = self._pairs(self.column("hist_offset")[rows], lengths)
        bins, places = np.unique(exponents, return_inverse=True)
        totals = np.zeros(len(bins), np.uint64)
        np.add.at(totals, places, counts)
        zero, nan, inf, subnormal = (
            int(self.column(name)[rows].sum()) for name in ("zero", "nan", "inf", "subnormal")
        )
        return Log2Histogram.from_pairs(
            bins, totals, zero=zero, nan=nan, inf=inf, subnormal=subnormal
        )

    def blocks(self, rows: Array, nbytes: int = BLOCK_BYTES) -> Iterator[tuple[Array, str]]:
        """Yield (raw stored values, dtype) of these rows, in stacks of about `nbytes` bytes.

        The values of all these rows must be stored (`kept`). Rows of one dtype and shape come
        together, in the order of `rows`, as (number of rows, *shape). Rows whose form is flat
        (records of many shapes) come one by one, each as an array of its own shape.
        """
        for stored, places in self._by_form(rows):
            dtype, own = stored.entry.dtype, rows[places]
            if stored.entry.flat:
                yield from ((self.raw(row), dtype) for row in own.tolist())
                continue
            size = max(nbytes // max(stored.values.nbytes, 1), 1)
            for start in range(0, len(own), size):
                yield self.stack(own[start : start + size]), dtype

    def gaps(self) -> list[Gap]:
        """Return the gaps of all attempts (what one writer each recorded).

        A gap counts the observations of one series that were not recorded for one reason.
        """
        return list(self.catalogue.gaps.values())

    def _by_form(self, rows: Array) -> list[tuple[StoredForm, Array]]:
        """Group these rows by form (records of one dtype and shape).

        Return, for each form, (its stored arrays, the indices into `rows` of its rows); [] for no
        rows.
        """
        numbers = self.column("form")[rows]
        if len(numbers) and (numbers == numbers[0]).all():  # as nearly always
            return [(self._stored(self._form(int(rows[0]))), np.arange(len(rows)))]
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        parts = np.split(order, cuts) if len(order) else []
        return [(self._stored(self._form(int(rows[part[0]]))), part) for part in parts]

    def _form(self, row: int) -> Form:
        return self.catalogue.forms[int(self.column("form")[row])]
