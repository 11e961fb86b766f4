"""How an array is cut into chunks, each compressed by itself, and into shards of many chunks.

Chunks and shards are cut along one axis and extend fully along all later axes. So the elements of a
chunk, and those of a shard, are consecutive in the array's C order, and consecutive elements lie in
consecutive chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

__all__ = ["CHUNK_BYTES", "SHARD_BYTES", "Grid"]

CHUNK_BYTES: Final = 2 << 20
"""The most bytes of a chunk; chunks of a larger array have more than half as many."""

SHARD_BYTES: Final = 64 << 20
"""The most bytes of a shard, before compression."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The shape of an array, of its chunks and of its shards, in elements along each axis."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], itemsize: int) -> Grid:
        """Return the grid of an array: the largest chunks and shards that the limits allow.

        The limits are CHUNK_BYTES and SHARD_BYTES. shape: the shape of the array. itemsize: bytes
        of an element.
        """
        chunk = _cut(shape, (1,) * len(shape), CHUNK_BYTES // itemsize)
        whole = tuple(-(-size // step) * step for size, step in zip(shape, chunk, strict=True))
        return cls(shape, chunk, _cut(whole, chunk, SHARD_BYTES // itemsize))

    def check(self, itemsize: int) -> None:
        """Raise ValueError where chunks or shards are too large, or not cut as `of` cuts them.

        Chunks and shards must be cut along one axis and extend fully along all later axes. The size
        is checked because a chunk is decompressed as a whole, so that a forged size could take any
        amount of memory. itemsize: bytes of an element.
        """
        whole = tuple(-(-n // max(k, 1)) * k for n, k in zip(self.shape, self.chunk, strict=True))
        ones = (1,) * len(self.shape)
        if not _is_cut(self.shape, self.chunk, ones) or not _is_cut(whole, self.shard, self.chunk):
            raise ValueError("its chunks are cut in another way")
        if prod(self.chunk) * itemsize > CHUNK_BYTES or prod(self.shard) * itemsize > SHARD_BYTES:
            raise ValueError("its chunks are larger than any")

    @property
    def chunk_elements(self) -> int:
        """How many elements a full chunk has."""
        return prod(self.chunk)

    @property
    def chunks(self) -> int:
        """How many chunks hold elements of the array."""
        return prod(self._counts)

    @property
    def shard_chunks(self) -> int:
        """How many chunks a full shard has."""
        return prod(self._per_shard)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield, for elements start … stop - 1 in C order, in which chunks they lie.

        Each item is (number of the chunk, index in the chunk of the first of its wanted elements,
        how many elements of the chunk are wanted).
        """
        slab, line = self._slab, self._line
        while start < stop:
            lines, at = divmod(start, line)
            number, offset = divmod(at, slab)
            count = min(slab - offset, line - at, stop - start)
            yield lines * self._line_chunks + number, offset, count
            start += count

    def extent(self, chunk: int) -> tuple[int, int]:
        """Return the range of elements of one chunk: the first, and the one behind the last.

        Elements are numbered in the array's C order.
        """
        lines, number = divmod(chunk, self._line_chunks)
        begin = lines * self._line
        start = begin + number * self._slab
        return start, min(start + self._slab, begin + self._line)

    def place(self, chunk: int) -> tuple[str, int]:
        """Return the key ("c/0/0") of the shard that holds a chunk, and the chunk's index in it.

        The key is below the array's folder. chunk: the number of the chunk, counted in C order.
        """
        where = np.unravel_index(chunk, self._counts)
        shard, inside = np.divmod(where, self._per_shard)
        place = int(np.ravel_multi_index(tuple(inside), self._per_shard))
        return "/".join(["c", *map(str, shard)]), place

    @property
    def _counts(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return tuple(-(-size // step) for size, step in zip(self.shape, self.chunk, strict=True))

    @property
    def _per_shard(self) -> tuple[int, ...]:
        return tuple(size // step for size, step in zip(self.shard, self.chunk, strict=True))

    @property
    def _axis(self) -> int:
        """The axis along which chunks are cut; 0 where one chunk holds the whole array."""
        cut = [a for a, (n, k) in enumerate(zip(self.shape, self.chunk, strict=True)) if n > k]
        return max(cut, default=0)

    @property
    def _slab(self) -> int:
        """How many elements a full chunk holds; the last along the cut axis may hold fewer."""
        return self.chunk[self._axis] * prod(self.shape[self._axis + 1 :])

    @property
    def _line(self) -> int:
        """How many elements lie along the cut axis and all later axes together."""
        return prod(self.shape[self._axis :])

    @property
    def _line_chunks(self) -> int:
        return self._counts[self._axis]


def _cut(shape: tuple[int, ...], unit: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the shape of the largest chunk, or shard, of at most `most` elements.

    The result is a multiple of `unit` along one axis, extends fully along all later axes, and
    equals `unit` along all earlier axes.

    shape: the shape of the array; for shards rounded up to whole chunks. unit: (1, 1, …) for
        chunks; the shape of a chunk for shards.
    """
    sizes = list(unit)
    room = most
    for axis in reversed(range(len(shape))):
        size = max(shape[axis], 1)
        if size > room:
            sizes[axis] = max(room // unit[axis], 1) * unit[axis]
            break
        sizes[axis] = size
        room //= size
    return tuple(sizes)


def _is_cut(shape: tuple[int, ...], part: tuple[int, ...], unit: tuple[int, ...]) -> bool:
    axes = list(zip(shape, part, unit, strict=True))
    if any(step < 1 or size % step for _, size, step in axes):
        return False
    short = [size < extent for extent, size, _ in axes]
    split = max((axis for axis, is_short in enumerate(short) if is_short), default=0)
    return all(size == step for _, size, step in axes[:split])
