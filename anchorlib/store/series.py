"""The series of one rank as its writer holds them: which variant takes a record.

What is new gets its node in the hierarchy first and its catalogue line second, and only then rows
that speak of it; a node without a line, left by a crash, is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import InvalidNameError, StoreError
from anchorlib.names import MAX_NAME_BYTES, check_name, quoted
from anchorlib.record import Record, is_kind
from anchorlib.store.catalog import Catalogue, SeriesEntry, Variant, encode
from anchorlib.store.layout import MAX_SHAPES, array_name, hashed_segment, kind_segment, segment
from anchorlib.store.metadata import group_json, stamp
from anchorlib.store.slots import ChunkFiles
from anchorlib.store.table import CatalogFile
from anchorlib.store.tree import Tree
from anchorlib.store.variants import FlatVariant, OpenVariant, PlainVariant, flat_rows, plain_rows

__all__ = ["SeriesShelf", "check_record"]

MAX_DIMS = 64  # numpy's own limit
MAX_MODE_BYTES = 256
FILES = 8  # that a new series makes, about: groups, its array, the first chunk
LABEL_FILES = 10  # that `publish` makes for it
SeriesKey = tuple[str, str, str]


class SeriesShelf:
    """Finds the variant of a record, making series and variants as they first appear."""

    def __init__(
        self,
        tensors: Path,
        catalogue: Catalogue,
        file: CatalogFile,
        tree: Tree,
        files: ChunkFiles,
        made: Callable[[int, int], None],
    ) -> None:
        """`made` is told how many files a new series or variant is about to make, now and later."""
        self._tensors = tensors
        self._file = file
        self._tree = tree
        self._files = files
        self._made = made
        self.series: dict[SeriesKey, SeriesEntry] = {}
        self.variants: list[OpenVariant] = []
        self._by_shape: dict[tuple[SeriesKey, str, tuple[int, ...]], OpenVariant] = {}
        self._shared: dict[tuple[SeriesKey, str, int], OpenVariant] = {}
        self._of_series: list[int] = []  # how many variants each series has
        self._names: dict[str, str] = {}  # a segment without its case: whose it is
        self._taken: dict[str, SeriesKey] = {}  # likewise for the groups of series
        for entry in catalogue.series:
            self._remember(entry)
        for variant in catalogue.variants:
            series = catalogue.series[variant.series]
            self._add(self._build(variant, series, self._of_series[series.id]))

    def find(self, record: Record) -> OpenVariant:
        """The variant that takes `record`, ready for its values."""
        key = (record.name, record.kind, record.mode)
        variant = self._by_shape.get((key, record.dtype, record.shape))
        if variant is None:
            variant = self._find_slowly(key, record)
        if record.raw is not None and variant.entry.array is None:
            self._begin_array(variant)
        return variant

    def _find_slowly(self, key: SeriesKey, record: Record) -> OpenVariant:
        shared = self._shared.get((key, record.dtype, len(record.shape)))
        if shared is not None:
            return shared
        check_record(record)
        self._made(FILES, LABEL_FILES)
        series = self.series.get(key)
        if series is None:
            return self._new_series(key, record)
        flat = self._of_series[series.id] >= MAX_SHAPES and len(record.shape) > 0
        variant, lines = self._new_variant(series, record, self._of_series[series.id], flat=flat)
        if variant.entry.array is not None:
            variant.make(self._tree)
        self._append(*lines)
        return self._add(variant)

    def _new_series(self, key: SeriesKey, record: Record) -> OpenVariant:
        """A series with its first variant: all of its nodes are put in place together."""
        name, kind, mode = key
        folder = self._unique_segment(name)
        base = f"{folder}/{kind_segment(kind, None)}"
        if base.casefold() in self._taken:
            base = f"{folder}/{kind_segment(kind, mode)}"
        entry = SeriesEntry(len(self.series), name, kind, mode, base)
        variant, lines = self._new_variant(entry, record, 0, flat=False)
        arrays = {} if variant.entry.array is None else variant.documents()
        about = group_json(stamp(name=name, kind=kind, mode=mode))
        if folder.casefold() in self._names:
            self._tree.make(f"{self._tensors}/{base}", about, arrays)
        else:
            inner = base.partition("/")[2]
            below = {inner: about, **{f"{inner}/{one}": text for one, text in arrays.items()}}
            self._tree.make(f"{self._tensors}/{folder}", group_json(stamp(name=name)), below)
        line = {"series": entry.id, "name": name, "kind": kind, "mode": mode, "path": base}
        self._append(line, *lines)
        self._remember(entry)
        return self._add(variant)

    def _unique_segment(self, name: str) -> str:
        # "A" and "a" are two tensors and, on some file systems, one directory.
        folder = segment(name)
        owner = self._names.get(folder.casefold(), name)
        return folder if owner == name else hashed_segment(name, folder)

    def _remember(self, entry: SeriesEntry) -> None:
        key = (entry.name, entry.kind, entry.mode)
        self.series[key] = entry
        self._names[entry.path.split("/")[0].casefold()] = entry.name
        self._taken[entry.path.casefold()] = key
        self._of_series.append(0)

    def _new_variant(
        self, series: SeriesEntry, record: Record, index: int, *, flat: bool
    ) -> tuple[OpenVariant, list[dict[str, object]]]:
        """A variant for records like this one, and its lines; nothing of it is on disk yet."""
        number, shape = len(self.variants), record.shape
        line: dict[str, object] = {"variant": number, "series": series.id, "dtype": record.dtype}
        line |= {"ndim": len(shape)} if flat else {"shape": shape}
        entry = Variant(number, series.id, record.dtype, None if flat else shape, len(shape))
        if not flat and record.raw is None:  # it may never have values
            return self._build(entry, series, index), [line]
        name = array_name(index, flat=flat)
        storage = dtypes.dtype(record.dtype).storage
        rows = flat_rows(storage) if flat else plain_rows(storage, shape)
        entry = replace(entry, array=name, rows=rows)
        return self._build(entry, series, index), [line, array_line(entry)]

    def _build(self, entry: Variant, series: SeriesEntry, index: int) -> OpenVariant:
        storage = dtypes.dtype(entry.dtype).storage
        place = (f"{self._tensors}/{series.path}", self._files)
        if entry.shape is None:
            return FlatVariant(entry, series, storage, index, *place)
        variant = PlainVariant(entry, series, storage, index, *place, shape=entry.shape)
        if entry.array is not None:
            variant.open(entry)
        return variant

    def _add(self, variant: OpenVariant) -> OpenVariant:
        entry, series = variant.entry, variant.series
        key = (series.name, series.kind, series.mode)
        if entry.shape is None:
            self._shared[key, entry.dtype, entry.ndim] = variant
        else:
            self._by_shape[key, entry.dtype, entry.shape] = variant
        self._of_series[series.id] += 1
        self.variants.append(variant)
        return variant

    def _begin_array(self, variant: OpenVariant) -> None:
        if not isinstance(variant, PlainVariant):
            raise TypeError("a flat variant has its arrays from the start")
        rows = plain_rows(variant.storage, variant.shape)
        entry = replace(variant.entry, array=array_name(variant.index), rows=rows)
        self._build(entry, variant.series, variant.index).make(self._tree)
        self._append(array_line(entry))
        variant.open(entry)

    def _append(self, *lines: dict[str, object]) -> None:
        self._file.append(b"".join(map(encode, lines)))


def array_line(entry: Variant) -> dict[str, object]:
    """The catalogue's line of the array that a variant keeps its values in."""
    return {"array": entry.id, "name": entry.array, "rows": entry.rows}


def check_record(record: Record) -> None:
    """Refuses what has no place in a store, whoever sent it.

    Raises InvalidNameError, UnknownDTypeError, or StoreError for a shape that cannot be.
    """
    check_name(record.name)
    if not is_kind(record.kind) or not _fits(record.kind, MAX_NAME_BYTES):
        raise InvalidNameError(f"{quoted(record.kind)} is no kind of {quoted(record.name)}")
    if not _fits(record.mode, MAX_MODE_BYTES):
        raise InvalidNameError(
            f"the mode of {quoted(record.name)} is no text of at most {MAX_MODE_BYTES} bytes"
        )
    dtypes.dtype(record.dtype)
    if len(record.shape) > MAX_DIMS or any(size < 0 for size in record.shape):
        raise StoreError(f"{record.name!r} has a shape that no tensor has: {record.shape}")
    if int(np.prod([max(d, 1) for d in record.shape], dtype=object)) >= 2**60:
        raise StoreError(f"{record.name!r} is too large to be a tensor: {record.shape}")


def _fits(text: str, most: int) -> bool:
    """Whether UTF-8 can write `text`, in that many bytes."""
    try:
        return len(text.encode()) <= most
    except UnicodeEncodeError:
        return False


def check_raw(
    record: Record, raw: np.ndarray[Any, Any], storage: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """The raw array of a record as it can be written.

    Raises StoreError where it is not the storage of the record's dtype and shape.
    """
    if raw.dtype != storage or raw.shape != record.shape:
        raise StoreError(
            f"{record.name!r} claims {record.dtype} {record.shape}, but carries {raw.dtype} "
            f"{raw.shape}"
        )
    return raw if raw.flags.c_contiguous else np.ascontiguousarray(raw)
