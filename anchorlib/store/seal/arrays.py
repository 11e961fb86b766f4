"""One array of a sealed rank: its description for anchorlib and for zarr, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from anchorlib.store.format import ArrayShape, array_json, is_safe_key, items, shape_of, text, whole
from anchorlib.store.seal.chunk_grid import Grid
from anchorlib.store.seal.codecs import (
    NO_CHUNK,
    codec_chain,
    compressed,
    shard_index_bytes,
    sharding,
)
from anchorlib.store.seal.object_target import Buffer

__all__ = ["SealedArray", "Written"]

Array = np.ndarray[Any, Any]
Elements = Callable[[int, int], Array]
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SealedArray:
    """The description of an array of a sealed rank.

    key: the path of its folder in the rank.
    serves: the keys of the arrays that held its entries before sealing. There is one key, or for a
        stack (columns of one dtype in one array) one key for each column. None stands for a column
        that was no array before sealing.
    columns: the names of a stack's columns; empty for an array that is no stack.
    rows: how many rows a chunk file held before sealing.
    sorted_by: None where sealing kept the order of records; else the key of the array that says in
        which row each record was before sealing.
    """

    key: str
    dtype: np.dtype[Any]
    grid: Grid
    serves: tuple[str | None, ...]
    rows: int
    columns: tuple[str, ...] = ()
    sorted_by: str | None = None

    def entry(self) -> dict[str, Any]:
        """Return the array's entry in `sealed.json`."""
        entry: dict[str, Any] = {
            "dtype": self.dtype.str,
            "shape": self.grid.shape,
            "chunk": self.grid.chunk,
            "shard": self.grid.shard,
            "serves": self.serves,
            "rows": self.rows,
        }
        if self.columns:
            entry["columns"] = self.columns
        return entry if self.sorted_by is None else {**entry, "sorted_by": self.sorted_by}

    @classmethod
    def read(cls, key: str, entry: Mapping[str, Any]) -> SealedArray:
        """Return the description of the array at `key` from its entry in `sealed.json`.

        Raises ValueError, KeyError or TypeError for an entry that describes no array.
        """
        dtype = np.dtype(text(entry["dtype"]))
        grid = Grid(*(shape_of(entry[name]) for name in ("shape", "chunk", "shard")))
        dims = {len(grid.shape), len(grid.chunk), len(grid.shard)}
        if dtype.hasobject or not dtype.itemsize or len(dims) > 1:
            raise ValueError("its shapes or its dtype are those of no array")
        grid.check(dtype.itemsize)
        serves = tuple(None if one is None else text(one) for one in items(entry["serves"]))
        columns = tuple(map(text, items(entry.get("columns", ()))))
        if len(serves) != (grid.shape[0] if columns else 1) or len(columns) not in (0, len(serves)):
            raise ValueError("its columns are not those it has")
        sorted_by = entry.get("sorted_by")
        if not all(is_safe_key(one) for one in serves if one is not None):
            raise ValueError("one of its keys leads out of the run")
        return cls(
            *(key, dtype, grid, serves, whole(entry["rows"], 1, _MOST), columns),
            sorted_by=None if sorted_by is None else text(sorted_by),
        )


@dataclass(frozen=True, slots=True)
class Written:
    """An array to be written as shards, with its zarr dimension names, attributes, compressor.

    codec: the compressor that blosc uses, "lz4" or "zstd".
    """

    array: SealedArray
    dimensions: tuple[str, ...]
    codec: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> bytes:
        """Return the zarr.json of the array."""
        array, grid = self.array, self.array.grid
        shape = ArrayShape(array.dtype, grid.shape, grid.shard, self.dimensions, self.attributes)
        document = json.loads(array_json(shape))
        document["codecs"] = [sharding(grid.chunk, codec_chain(array.dtype, self.codec))]
        document["chunk_key_encoding"]["configuration"]["separator"] = "/"
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()

    def shards(self, elements: Elements) -> Iterator[tuple[str, Sequence[Buffer]]]:
        """Yield each shard's key in the rank and its bytes, in the order of the elements.

        elements: a function that returns elements start … stop - 1, flat, in C order; it is called
            with ascending ranges.
        """
        grid, chunk = self.array.grid, 0
        while chunk < grid.chunks:
            first, (name, _) = chunk, grid.place(chunk)
            while chunk < grid.chunks and grid.place(chunk)[0] == name:
                chunk += 1
            data = elements(grid.extent(first)[0], grid.extent(chunk - 1)[1])
            yield f"{self.array.key}/{name}", self._shard(first, chunk, data)

    def _shard(self, first: int, stop: int, data: Array) -> list[Buffer]:
        grid = self.array.grid
        index = np.full((grid.shard_chunks, 2), NO_CHUNK, np.uint64)
        parts: list[Buffer] = []
        size, begin = 0, grid.extent(first)[0]
        for chunk in range(first, stop):
            start, end = grid.extent(chunk)
            made = compressed(_full(data[start - begin : end - begin], grid), self.codec)
            nbytes = sum(map(len, made))
            index[grid.place(chunk)[1]] = size, nbytes
            size += nbytes
            parts += made
        return [*parts, shard_index_bytes(index)]


def _full(data: Array, grid: Grid) -> Array:
    """Return a chunk's elements, filled up with zeros to the size of a chunk."""
    if len(data) == grid.chunk_elements:
        return data
    # Only the last chunk on a line is short, and its missing elements come behind the others.
    chunk = np.zeros(grid.chunk_elements, data.dtype)
    chunk[: len(data)] = data
    return chunk
