"""One sealed array: what zarr has to know of it, what our readers do, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from anchorlib.store.format import ArrayShape, array_json, is_safe_key, items, shape_of, text, whole
from anchorlib.store.seal.codecs import (
    NO_CHUNK,
    codec_chain,
    compressed,
    index_bytes,
    sharding,
)
from anchorlib.store.seal.grid import Grid
from anchorlib.store.seal.target import Buffer

__all__ = ["SealedArray", "Written"]

Array = np.ndarray[Any, Any]
Elements = Callable[[int, int], Array]
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SealedArray:
    """An array of a sealed rank.

    key: of its folder, in the rank. serves: the arrays of the rank as it was written that it stands
    for, by their keys: one, or, where it is a stack of columns, one for each entry of its first
    axis, None where a column was none. columns: what these are called. rows: that a chunk file had.
    sorted_by: the labels that say where each of its records was before; None where it was there.
    """

    key: str
    dtype: np.dtype[Any]
    grid: Grid
    serves: tuple[str | None, ...]
    rows: int
    columns: tuple[str, ...] = ()
    sorted_by: str | None = None

    def told(self) -> dict[str, Any]:
        """What `sealed.json` says of it."""
        told: dict[str, Any] = {
            "dtype": self.dtype.str,
            "shape": self.grid.shape,
            "chunk": self.grid.chunk,
            "shard": self.grid.shard,
            "serves": self.serves,
            "rows": self.rows,
        }
        if self.columns:
            told["columns"] = self.columns
        return told if self.sorted_by is None else {**told, "sorted_by": self.sorted_by}

    @classmethod
    def read(cls, key: str, told: Mapping[str, Any]) -> SealedArray:
        """The array of `told`. Raises ValueError, KeyError and TypeError for what says of none."""
        dtype = np.dtype(text(told["dtype"]))
        grid = Grid(*(shape_of(told[name]) for name in ("shape", "chunk", "shard")))
        dims = {len(grid.shape), len(grid.chunk), len(grid.shard)}
        if dtype.hasobject or not dtype.itemsize or len(dims) > 1:
            raise ValueError("its shapes or its dtype are those of no array")
        grid.check(dtype.itemsize)
        serves = tuple(None if one is None else text(one) for one in items(told["serves"]))
        columns = tuple(map(text, items(told.get("columns", ()))))
        if len(serves) != (grid.shape[0] if columns else 1) or len(columns) not in (0, len(serves)):
            raise ValueError("its columns are not those it has")
        sorted_by = told.get("sorted_by")
        if not all(is_safe_key(one) for one in serves if one is not None):
            raise ValueError("one of its keys leads out of the run")
        return cls(
            *(key, dtype, grid, serves, whole(told["rows"], 1, _MOST), columns),
            sorted_by=None if sorted_by is None else text(sorted_by),
        )


@dataclass(frozen=True, slots=True)
class Written:
    """How an array is written: what zarr calls its axes, what it says, and how it is compressed."""

    array: SealedArray
    dimensions: tuple[str, ...]
    codec: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> bytes:
        """Its zarr.json."""
        array, grid = self.array, self.array.grid
        shape = ArrayShape(array.dtype, grid.shape, grid.shard, self.dimensions, self.attributes)
        told = json.loads(array_json(shape))
        told["codecs"] = [sharding(grid.chunk, codec_chain(array.dtype, self.codec))]
        told["chunk_key_encoding"]["configuration"]["separator"] = "/"
        return json.dumps(told, allow_nan=False, separators=(",", ":")).encode()

    def shards(self, elements: Elements) -> Iterator[tuple[str, Sequence[Buffer]]]:
        """Each shard by its key in the rank, in order of its elements.

        elements: gives those from one place to another, flat, in C order; asked for in order.
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
        return [*parts, index_bytes(index)]


def _full(data: Array, grid: Grid) -> Array:
    """A chunk's elements with zeros behind them, up to its end."""
    if len(data) == grid.chunk_elements:
        return data
    # The last one on a line: what lies beyond the array follows all that lies in it.
    found = np.zeros(grid.chunk_elements, data.dtype)
    found[: len(data)] = data
    return found
