"""One rank of a run as a reader sees it: committed rows and what they mean.

It never repairs and never locks: it trusts `seq` and whole catalogue lines, which a writer puts
down only after everything they speak of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import RunNotFoundError
from anchorlib.record import Gap
from anchorlib.store.catalog import Catalogue, Variant, whole_lines
from anchorlib.store.layout import (
    CATALOG_CHUNK,
    COLUMNS,
    HIST_COLUMNS,
    NOT_KEPT,
    ROWS_PER_CHUNK,
    chunk_key,
    rank_name,
)
from anchorlib.store.location import Location, Within
from anchorlib.store.rows import StoredRows, committed_rows
from anchorlib.summary import Log2Histogram, summarise

__all__ = ["RankReader"]

Array = np.ndarray[Any, Any]


class RankReader:
    """Columns, values and catalogue of one rank, as of the last `refresh`."""

    def __init__(self, run: Location, rank: int) -> None:
        self.rank = rank
        self._location = Within(run, rank_name(rank))
        self.catalogue = Catalogue(rank)
        self.committed = 0
        self._columns: dict[str, Array] = {}
        self._catalogue_end = 0
        self._first_line = b""
        self.refresh()

    @property
    def is_current(self) -> bool:
        """Whether the rank is still the one that was opened: not overwritten, not removed."""
        head = self._location.get(f"catalog/{chunk_key(0, 0)}", 0, len(self._first_line))
        return head == self._first_line

    def refresh(self) -> None:
        """Reads what was committed since."""
        # Rows first: whatever they speak of stands in the catalogue already.
        known = self.committed
        committed = committed_rows(self._location, "records", known)
        self._read_catalogue()
        self.committed = self._understood(known, committed)

    def _understood(self, known: int, committed: int) -> int:
        # Power loss, unlike a kill, can keep a row and lose the line that says what it is.
        for start in range(known, committed, ROWS_PER_CHUNK):
            variants = self.span("variant", start, min(start + ROWS_PER_CHUNK, committed))
            unknown = np.flatnonzero(variants >= len(self.catalogue.variants))
            if len(unknown):
                return start + int(unknown[0])
        return committed

    def _read_catalogue(self) -> None:
        chunk, start = divmod(self._catalogue_end, CATALOG_CHUNK)
        parts: list[bytes] = []
        while part := self._location.get(f"catalog/{chunk_key(chunk, 0)}", start):
            parts.append(part)
            if part.endswith(b"\0"):
                break
            chunk, start = chunk + 1, 0
        lines, end = whole_lines(b"".join(parts))
        self.catalogue.apply(lines)
        if lines and not self._catalogue_end:
            self._first_line = lines[0]
        self._catalogue_end += end
        if not self._catalogue_end:
            raise RunNotFoundError(f"rank {self.rank} is not there (any more), or is no run's rank")

    @property
    def version(self) -> tuple[int, int]:
        """Differs whenever something was committed since."""
        return (self.committed, self._catalogue_end)

    @property
    def catalogue_end(self) -> int:
        """Bytes of whole lines in the catalogue."""
        return self._catalogue_end

    def column(self, name: str) -> Array:
        """One column over all committed rows, in the order they were written."""
        known = self._columns.get(name)
        have = 0 if known is None else len(known)
        if known is None or have < self.committed:
            fresh = self.span(name, have, self.committed)
            known = fresh if known is None else np.concatenate([known, fresh])
            self._columns[name] = known
        return known[: self.committed]

    def span(self, name: str, start: int, stop: int) -> Array:
        """Part of a column, which is not kept in memory."""
        return StoredRows(self._location, f"records/{name}", COLUMNS[name]).span(start, stop)

    def cell(self, name: str, row: int) -> Any:
        """One column's entry for one row."""
        return self.column(name)[row]

    @property
    def series_ids(self) -> Array:
        """The series of each row."""
        owner = np.array([variant.series for variant in self.catalogue.variants], np.int64)
        return owner[self.column("variant")] if len(owner) else np.empty(0, np.int64)

    def kept(self, rows: Array) -> Array:
        """Whether the values of these rows are stored."""
        kept: Array = (self.column("flags")[rows] & NOT_KEPT) == 0
        return kept

    def shapes(self, rows: Array) -> list[tuple[int, ...]]:
        """The tensor shape of each of these rows."""
        variants = self.column("variant")[rows]
        found: list[tuple[int, ...]] = [()] * len(rows)
        for number in np.unique(variants):
            variant = self.catalogue.variants[number]
            places = np.flatnonzero(variants == number)
            if variant.shape is None:
                shapes = [tuple(s) for s in self._flat_shape(variant, rows[places]).tolist()]
            else:
                shapes = [variant.shape] * len(places)
            for place, shape in zip(places, shapes, strict=True):
                found[place] = shape
        return found

    def shape_set(self, rows: Array) -> set[tuple[int, ...]]:
        """The different tensor shapes of these rows."""
        variants = self.variants_of(rows)
        found = {variant.shape for variant in variants if variant.shape is not None}
        for variant in variants:
            if variant.shape is None:
                own = rows[self.column("variant")[rows] == variant.id]
                found |= {tuple(shape) for shape in self._flat_shape(variant, own).tolist()}
        return found

    def dtypes(self, rows: Array) -> list[str]:
        """The dtype of each of these rows."""
        variants = self.catalogue.variants
        return [variants[number].dtype for number in self.column("variant")[rows]]

    def variants_of(self, rows: Array) -> list[Variant]:
        """The variants that these rows belong to, each once, in the order they were begun."""
        return [self.catalogue.variants[n] for n in np.unique(self.column("variant")[rows])]

    def stored_bytes(self, rows: Array) -> int:
        """Bytes of values that are stored of these rows."""
        rows = rows[self.kept(rows)]
        numbers, counts = np.unique(self.column("variant")[rows], return_counts=True)
        total = 0
        for number, records in zip(numbers, counts.tolist(), strict=True):
            variant = self.catalogue.variants[number]
            units = records
            if variant.shape is None:
                own = rows[self.column("variant")[rows] == number]
                units = int(np.prod(self._flat_shape(variant, own), axis=1).sum())
            total += units * self._values(variant).nbytes
        return total

    def gaps(self) -> list[Gap]:
        """What each attempt says it did not record."""
        return list(self.catalogue.gaps.values())

    def stack(self, rows: Array) -> Array:
        """Raw storage of rows of one variant that is not flat, shape (len(rows), *shape)."""
        variant = self.catalogue.variants[self.column("variant")[rows[0]]]
        return self._values(variant).pick(self.column("row")[rows])

    def raw(self, row: int) -> Array:
        """Raw storage of one row whose values are kept."""
        variant = self.catalogue.variants[self.column("variant")[row]]
        place = self.column("row")[row : row + 1]
        if variant.shape is not None:
            value: Array = self._values(variant).pick(place)[0]
            return value
        offset = int(self._flat_offsets(variant).pick(place)[0])
        shape = tuple(self._flat_shapes(variant).pick(place)[0].tolist())
        count = int(np.prod(shape, dtype=np.int64))
        return self._values(variant).span(offset, offset + count).reshape(shape)

    def flat_elements(self, variant: Variant, rows: int) -> int:
        """Elements that the first `rows` records of a flat variant have together."""
        offsets = self._flat_offsets(variant).span(0, rows)
        kept = np.flatnonzero(offsets >= 0)
        if not len(kept):
            return 0
        last = int(kept[-1])
        shape = self._flat_shapes(variant).span(last, last + 1)[0]
        return int(offsets[last]) + int(np.prod(shape))

    def histograms(self, rows: Array) -> list[Log2Histogram]:
        """The log2 histograms of these rows, stored or computed from the values."""
        return [self._histogram(int(row)) for row in rows]

    def _histogram(self, row: int) -> Log2Histogram:
        length = int(self.column("hist_length")[row])
        if length < 0:
            dtype = self.catalogue.variants[self.column("variant")[row]].dtype
            return summarise(self.raw(row), dtype).histogram
        offset = int(self.column("hist_offset")[row])
        exponents, counts = (
            StoredRows(self._location, f"records/{name}", dtype).span(offset, offset + length)
            for name, dtype in HIST_COLUMNS.items()
        )
        figures = {
            name: int(self.column(name)[row]) for name in ("zero", "nan", "inf", "subnormal")
        }
        return Log2Histogram.from_pairs(exponents, counts, **figures)

    def _array_key(self, variant: Variant, suffix: str = "") -> str:
        return f"tensors/{self.catalogue.series[variant.series].path}/{variant.array}{suffix}"

    def _values(self, variant: Variant) -> StoredRows:
        storage = dtypes.dtype(variant.dtype).storage
        key = self._array_key(variant)
        return StoredRows(self._location, key, storage, variant.rows, variant.shape or ())

    def _flat_shape(self, variant: Variant, rows: Array) -> Array:
        return self._flat_shapes(variant).pick(self.column("row")[rows])

    def _flat_offsets(self, variant: Variant) -> StoredRows:
        key = self._array_key(variant, "_offset")
        return StoredRows(self._location, key, np.dtype("<i8"), ROWS_PER_CHUNK)

    def _flat_shapes(self, variant: Variant) -> StoredRows:
        key = self._array_key(variant, "_shape")
        rows = max(ROWS_PER_CHUNK // variant.ndim, 1)
        return StoredRows(self._location, key, np.dtype("<i8"), rows, (variant.ndim,))
