"""What of a rank does not fit its checksums: rows, labels, and what lies behind the last row.

The values themselves are compared with their digests by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.store.catalog import Variant, whole_lines
from anchorlib.store.checks import flat_seed, is_sound, row_check
from anchorlib.store.layout import (
    CATALOG_CHUNK,
    COLUMNS,
    COORDINATE_ROWS,
    COORDINATES,
    HIST_COLUMNS,
    MOST_BINS,
    ROW,
    ROWS_PER_CHUNK,
    array_suffix,
    chunk_key,
    rank_name,
)
from anchorlib.store.location import Location, Within
from anchorlib.store.rank import RankReader
from anchorlib.store.rows import StoredRows, committed_rows
from anchorlib.store.values import StoredVariant

__all__ = ["RankAudit"]

Array = np.ndarray[Any, Any]
_PART: Final = 4096  # rows looked at together
_INT64: Final = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class Checked:
    """Of some rows: which do not fit their checksum, and how many have none.

    labels: rows whose coordinates are other ones beside their values, where xarray finds them.
    """

    bad: list[int]
    labels: list[int]
    unchecked: int


class RankAudit:
    """Compares one rank of the run at `run` with its checksums; `reader` reads the same rank."""

    def __init__(self, run: Location, reader: RankReader) -> None:
        self._location = Within(run, rank_name(reader.rank))
        self._reader = reader
        # In this order: what a live writer adds meanwhile is no damage.
        self._counted = committed_rows(self._location, "records")
        reader.refresh()
        self._seeds = [
            variant.identity(reader.catalogue.series[variant.series])
            for variant in reader.catalogue.variants
        ]

    def parts(self) -> Iterator[tuple[int, int]]:
        """All rows in parts for `rows`."""
        for start in range(0, self._reader.committed, _PART):
            yield start, min(start + _PART, self._reader.committed)

    def rows(self, start: int, stop: int) -> Checked:
        """Compares rows start … stop - 1. Raises StoreError where a column cannot be read."""
        bad, unchecked = self._rows(start, stop)
        return Checked(bad, self._labels(start, stop, bad), unchecked)

    def _rows(self, start: int, stop: int) -> tuple[list[int], int]:
        checked = self._reader.catalogue.checked
        first = stop if checked is None else min(max(start, checked), stop)
        if first == stop:
            return [], stop - start
        table = np.empty(stop - first, ROW)
        for name in ROW.names or ():
            table[name] = self._reader.span(name, first, stop)
        told = self._reader.span("check", first, stop)
        made = self._each(table, self._checks)
        pairs = enumerate(zip(told.tolist(), made, strict=True), first)
        return [row for row, (one, other) in pairs if one != other], first - start

    def faults(self) -> Iterator[str]:
        """What is wrong with the rank as a whole."""
        reader = self._reader
        published = reader.catalogue.published
        counted = self._counted
        if reader.committed < max(published, counted):
            most = max(published, counted)
            yield f"{most - reader.committed} of {most} rows cannot be read any more"
        if behind := self._behind(counted):
            yield f"row {counted} says it is none, but {behind} come after it"
        if self._stray():
            yield "the catalogue goes on behind its end"

    def _labels(self, start: int, stop: int, but: list[int]) -> list[int]:
        reader = self._reader
        stop = max(start, min(stop, reader.catalogue.published))
        bad: set[int] = set()
        numbers, places = reader.span("variant", start, stop), reader.span("row", start, stop)
        # Of a bad row neither can be trusted.
        fit = ~np.isin(np.arange(start, stop), but) & (places >= 0)
        for number in np.unique(numbers[fit]).tolist():
            own = np.flatnonzero((numbers == number) & fit)
            for name in COORDINATES:
                told = reader.span(name, start, stop)[own]
                found = self._label(reader.catalogue.variants[number], name, places[own])
                bad.update((start + own[found != told]).tolist())
        return sorted(bad)

    def _label(self, variant: Variant, name: str, places: Array) -> Array:
        catalogue = self._reader.catalogue
        same = [one.id for one in catalogue.variants if one.series == variant.series]
        group = f"tensors/{catalogue.series[variant.series].path}"
        key = f"{group}/{name}{array_suffix(same.index(variant.id))}"
        return StoredRows(self._location, key, _INT64, COORDINATE_ROWS, blank=True).pick(places)

    def _each(self, table: Array, work: Callable[[Array], list[int | None]]) -> list[int | None]:
        """`work` on all rows, or where one cannot be read on each by itself; None for that one."""
        try:
            return work(table)
        # Where a place or a length was damaged, numpy is asked for what cannot be.
        except (StoreError, ValueError, OverflowError, MemoryError, IndexError):
            if len(table) == 1:
                return [None]
            half = len(table) // 2
            return self._each(table[:half], work) + self._each(table[half:], work)

    def _checks(self, table: Array) -> list[int | None]:
        packed, width = table.tobytes(), ROW.itemsize
        seeds, pairs = self._row_seeds(table), self._pairs(table)
        return [
            row_check(packed[at * width : (at + 1) * width] + pair, seed)
            for at, (pair, seed) in enumerate(zip(pairs, seeds, strict=True))
        ]

    def _row_seeds(self, table: Array) -> list[int]:
        seeds = [self._seeds[number] for number in table["variant"].tolist()]
        for number in np.unique(table["variant"]).tolist():
            variant = self._reader.catalogue.variants[number]
            if not variant.flat:
                continue
            group = f"tensors/{self._reader.catalogue.series[variant.series].path}"
            own = np.flatnonzero(table["variant"] == number)
            stored = StoredVariant(self._location, group, variant)
            rows = table["row"][own]
            shapes, offsets = stored.shapes(rows).tolist(), stored.offsets(rows).tolist()
            for at, shape, offset in zip(own.tolist(), shapes, offsets, strict=True):
                seeds[at] = flat_seed(seeds[at], offset, shape)
        return seeds

    def _pairs(self, table: Array) -> list[bytes]:
        """Each row's exponents and counts, as bytes."""
        lengths = np.maximum(table["hist_length"], 0)
        if (lengths > MOST_BINS).any():
            raise StoreError("a histogram has more bins than there are exponents")
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(table["hist_offset"] - (ends - lengths), lengths)
        exponents, counts = (
            StoredRows(self._location, f"records/{name}", dtype).pick(places).tobytes()
            for name, dtype in HIST_COLUMNS.items()
        )
        return [
            exponents[2 * (end - length) : 2 * end] + counts[8 * (end - length) : 8 * end]
            for length, end in zip(lengths.tolist(), ends.tolist(), strict=True)
        ]

    def _behind(self, counted: int) -> int:
        """Committed rows behind the first that is not: a writer leaves none.

        A live one adds rows between two looks, so what is seen has to be seen twice.
        """
        for _ in range(2):
            chunk, slot = divmod(counted, ROWS_PER_CHUNK)
            key = f"records/seq/{chunk_key(chunk, 0)}"
            width = COLUMNS["seq"].itemsize
            room = (ROWS_PER_CHUNK - slot) * width
            data = self._location.get(key, slot * width, room) or b""
            seq = np.frombuffer(data[: len(data) // 8 * 8], COLUMNS["seq"])
            due = np.arange(counted + 1, counted + 1 + len(seq), dtype=np.uint64)
            fit = seq == due
            if not fit.any() or fit[0]:
                return 0
        return int(fit.sum())

    def _stray(self) -> bool:
        """Whether anything but a line that was cut off stands behind the catalogue's end."""
        chunk, start = divmod(self._reader.catalogue_end, CATALOG_CHUNK)
        key = f"catalog/{chunk_key(chunk, 0)}"
        rest = self._location.get(key, start, CATALOG_CHUNK - start) or b""
        lines, end = whole_lines(rest)
        if lines:  # written since
            return False
        torn, _, behind = rest[end:].partition(b"\0")
        whole = bool(is_sound(torn)) or bool(is_sound(torn[:-1]))
        return whole or bool(behind.strip(b"\0"))
