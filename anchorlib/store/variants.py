"""Where the records of one dtype and shape go: an array of their own, or shared flat arrays.

    value            (record, *shape)
    flat_8           elements of all records, one after the other
    flat_8_offset    where each record's elements begin, -1 where its values were not kept
    flat_8_shape     (record, ndim)

A batch is taken first (`take` gives each record its row), then written, then settled; what was not
settled is discarded and its rows are given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from anchorlib.store.catalog import SeriesEntry, Variant
from anchorlib.store.checks import flat_seed
from anchorlib.store.layout import (
    FLAT_CHUNK,
    ROWS_PER_CHUNK,
    array_suffix,
    rows_per_chunk,
    shape_rows,
)
from anchorlib.store.metadata import ArrayShape, array_json, stamp
from anchorlib.store.slots import ChunkFiles, SlotArray
from anchorlib.store.tree import Tree

__all__ = ["FlatVariant", "OpenVariant", "PlainVariant"]

Array = np.ndarray[Any, Any]
INT64 = np.dtype("<i8")


@dataclass(slots=True, eq=False)
class OpenVariant:
    """What both forms have in common.

    index: which of its series' variants it is; 0 is "value". directory: of the series' group.
    rows: that the array has, the taken ones left out.
    """

    entry: Variant
    series: SeriesEntry
    storage: np.dtype[Any]
    index: int
    directory: str
    files: ChunkFiles
    rows: int = 0
    pending: list[Array] = field(default_factory=list)
    number: int = field(init=False)
    identity: int = field(init=False)

    def __post_init__(self) -> None:
        self.number = self.entry.id
        self.identity = self.entry.identity(self.series)

    @property
    def seed(self) -> int:
        """Of the checksum of the row that was taken last."""
        return self.identity

    @property
    def suffix(self) -> str:
        """Behind the names of this variant's dimensions and coordinates: each has its own."""
        return array_suffix(self.index)

    def attributes(self) -> dict[str, Any]:
        """What zarr.json says of an array: the true name, and where xarray finds its labels."""
        suffix = self.suffix
        about = stamp(
            name=self.series.name,
            kind=self.series.kind,
            mode=self.series.mode,
            dtype=self.entry.dtype,
            variant=self.entry.id,
        )
        return {**about, "coordinates": f"step{suffix} pass_index{suffix} call{suffix}"}

    def take(self, raw: Array | None, shape: tuple[int, ...]) -> int:
        """The row a record gets, -1 where it needs none."""
        raise NotImplementedError

    def write(self) -> None:
        """Writes what was taken."""
        raise NotImplementedError

    def settle(self) -> None:
        """What was taken is committed."""
        raise NotImplementedError

    def discard(self) -> None:
        """What was taken never was."""
        self.pending.clear()

    def documents(self) -> Mapping[str, bytes]:
        """zarr.json of each of its arrays, by name, at their present shape."""
        raise NotImplementedError

    def make(self, tree: Tree) -> None:
        """Puts its arrays in place, empty."""
        for name, document in self.documents().items():
            tree.make(f"{self.directory}/{name}", document)


@dataclass(slots=True, eq=False)
class PlainVariant(OpenVariant):
    """Records of one shape: rows of one array."""

    array: SlotArray | None = None
    shape: tuple[int, ...] = ()

    def take(self, raw: Array | None, shape: tuple[int, ...]) -> int:  # noqa: ARG002 - all alike
        """See `OpenVariant.take`."""
        if raw is None:
            return -1
        self.pending.append(raw)
        return self.rows + len(self.pending) - 1

    def write(self) -> None:
        """See `OpenVariant.write`."""
        pending = self.pending
        if not pending or self.array is None:
            return
        if len(pending) == 1:
            self.array.write_row(self.rows, pending[0].data)
        else:
            self.array.write(self.rows, [raw.data for raw in pending])

    def write_packed(self, rows: bytes) -> None:
        """Writes rows that lie end to end behind the settled ones."""
        if rows and self.array is not None:
            self.array.write_packed(self.rows, rows)

    def settle(self) -> None:
        """See `OpenVariant.settle`."""
        self.rows += len(self.pending)
        self.pending.clear()

    def open(self, entry: Variant) -> None:
        """From now on `entry` names an array: values can be taken."""
        self.entry = entry
        nbytes = self.storage.itemsize * prod(self.shape)
        path = f"{self.directory}/{entry.array}"
        self.array = SlotArray(self.files, path, nbytes, entry.rows, len(self.shape))

    def documents(self) -> Mapping[str, bytes]:
        """See `OpenVariant.documents`."""
        suffix = self.suffix
        # zarr wants chunks of at least one element; an empty tensor never has a chunk file.
        array = ArrayShape(
            self.storage,
            (self.rows, *self.shape),
            (self.entry.rows, *(max(size, 1) for size in self.shape)),
            (f"record{suffix}", *(f"d{i}{suffix}" for i in range(len(self.shape)))),
            self.attributes(),
        )
        return {str(self.entry.array): array_json(array)}


@dataclass(slots=True, eq=False)
class FlatVariant(OpenVariant):
    """Records of many shapes, `entry.ndim` dimensions each: elements, offsets and shapes."""

    elements: int = 0
    offsets: list[int] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    taken_elements: int = 0

    def take(self, raw: Array | None, shape: tuple[int, ...]) -> int:
        """See `OpenVariant.take`: the row of its offset and shape, which are kept in any case."""
        self.shapes.append(shape)
        if raw is None:
            self.offsets.append(-1)
        else:
            self.offsets.append(self.elements + self.taken_elements)
            self.taken_elements += raw.size
            self.pending.append(raw)
        return self.rows + len(self.shapes) - 1

    @property
    def seed(self) -> int:
        """See `OpenVariant.seed`."""
        return flat_seed(self.identity, self.offsets[-1], self.shapes[-1])

    def write(self) -> None:
        """See `OpenVariant.write`."""
        name = str(self.entry.array)
        place = self.elements
        elements = self._array(name, self.storage, self.entry.rows)
        for raw in self.pending:
            elements.write_packed(place, raw.tobytes())
            place += raw.size
        offsets = self._array(f"{name}_offset", INT64, ROWS_PER_CHUNK)
        offsets.write_packed(self.rows, np.array(self.offsets, INT64).tobytes())
        shapes = self._array(f"{name}_shape", INT64, shape_rows(self.entry.ndim), self.entry.ndim)
        shapes.write_packed(self.rows, np.array(self.shapes, INT64).tobytes())

    def settle(self) -> None:
        """See `OpenVariant.settle`."""
        self.rows += len(self.shapes)
        self.elements += self.taken_elements
        self.discard()

    def discard(self) -> None:
        """See `OpenVariant.discard`."""
        self.pending.clear()
        self.offsets.clear()
        self.shapes.clear()
        self.taken_elements = 0

    def documents(self) -> Mapping[str, bytes]:
        """See `OpenVariant.documents`."""
        name, suffix, ndim = str(self.entry.array), self.suffix, self.entry.ndim
        record = f"record{suffix}"
        elements = ArrayShape(
            self.storage,
            (self.elements,),
            (self.entry.rows,),
            (f"element{suffix}",),
            stamp(**self.attributes()["anchor"]),
        )
        offsets = ArrayShape(INT64, (self.rows,), (ROWS_PER_CHUNK,), (record,), self.attributes())
        shapes = ArrayShape(
            INT64, (self.rows, ndim), (shape_rows(ndim), ndim), (record, f"axis{suffix}")
        )
        return {
            name: array_json(elements),
            f"{name}_offset": array_json(offsets),
            f"{name}_shape": array_json(shapes),
        }

    def _array(self, name: str, dtype: np.dtype[Any], rows: int, width: int = 0) -> SlotArray:
        nbytes = dtype.itemsize * max(width, 1)
        return SlotArray(self.files, f"{self.directory}/{name}", nbytes, rows, 1 if width else 0)


def plain_rows(storage: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Records of this shape that a chunk file holds."""
    return rows_per_chunk(storage.itemsize * prod(shape))


def flat_rows(storage: np.dtype[Any]) -> int:
    """Elements a chunk of a flat array holds."""
    return FLAT_CHUNK // storage.itemsize
