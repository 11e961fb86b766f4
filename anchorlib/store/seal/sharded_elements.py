"""Reads elements from the shards of one sealed array, in as few requests as their offsets allow.

The index of a shard is read once. Then one request reads from the first wanted chunk to the last
one, or to a gap of more than 8 MiB between wanted chunks. A reader that continues where it stopped
gets the rest of the shard with its second request. Each chunk is compared with its checksum before
its elements are returned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from anchorlib.errors import DamagedError
from anchorlib.names import escape
from anchorlib.store.locations import Location
from anchorlib.store.seal.arrays import SealedArray
from anchorlib.store.seal.chunk_grid import SHARD_BYTES
from anchorlib.store.seal.codecs import INDEX_ENTRY, expanded, parsed_shard_index

__all__ = ["ShardCaches", "ShardedElements"]

Array = np.ndarray[Any, Any]
_INDEX_CHECK: Final = 4
_WHOLE: Final = 1 << 20  # objects up to this size are read as a whole
_GAP: Final = 8 << 20  # more unwanted bytes than these between two chunks: one more request
_CHUNKS_BYTES: Final = 32 << 20


@dataclass(slots=True)
class _LruCache:
    """A least-recently-used cache: up to `limit` bytes, but always at least one value."""

    limit: int
    _entries: OrderedDict[tuple[str, int], tuple[Any, int]] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def get(self, key: str, place: int = 0) -> Any:
        """Return the value cached under `key` and `place`; None where there is none."""
        entry = self._entries.get((key, place))
        if entry is None:
            return None
        self._entries.move_to_end((key, place))
        return entry[0]

    def put(self, value: Any, nbytes: int, key: str, place: int = 0) -> None:
        """Cache a value of `nbytes` bytes under `key` and `place`.

        Drop the least recently used values beyond the limit.
        """
        self._bytes += nbytes - self._entries.pop((key, place), (None, 0))[1]
        self._entries[key, place] = value, nbytes
        while self._bytes > self.limit and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class ShardCaches:
    """Caches for all arrays of a rank: decoded chunks, bytes of shards, and indexes of shards."""

    chunks: _LruCache = field(default_factory=lambda: _LruCache(_CHUNKS_BYTES))
    parts: _LruCache = field(default_factory=lambda: _LruCache(SHARD_BYTES))
    indexes: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ShardBytes:
    """Some consecutive bytes of a shard, which begin at offset `start` of it."""

    start: int
    data: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class ShardedElements:
    """Reads the elements of one array of a sealed (archived) rank, flat, in C order.

    rank: the location of the rank's objects. name: the rank's folder, for errors.
    array: the array's description in `sealed.json`.
    sizes: the size in bytes of each object, by its key in the rank, from `sealed.json`.
    caches: the caches that all arrays of the rank share.
    """

    rank: Location
    name: str
    array: SealedArray
    sizes: Mapping[str, int]
    caches: ShardCaches

    def spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[Array]:
        """Yield the elements of each span (start, stop) of the array, in order, each a flat array.

        Raises DamagedError, which names the object, where an object is missing, too short, or does
        not fit a checksum.
        """
        grid = self.array.grid
        wanted: dict[str, list[int]] = {}
        for start, stop in spans:
            for chunk, _, _ in grid.pieces(start, stop):
                name, place = grid.place(chunk)
                wanted.setdefault(name, []).append(place)
        for start, stop in spans:
            elements = np.empty(stop - start, self.array.dtype)
            at = 0
            for chunk, offset, count in grid.pieces(start, stop):
                elements[at : at + count] = self._chunk(chunk, wanted)[offset : offset + count]
                at += count
            yield elements

    def _chunk(self, number: int, wanted: Mapping[str, list[int]]) -> Array:
        name, place = self.array.grid.place(number)
        key = f"{self.array.key}/{name}"
        known: Array | None = self.caches.chunks.get(key, place)
        if known is not None:
            return known
        elements = np.empty(self.array.grid.chunk_elements, self.array.dtype)
        try:
            expanded(self._stored(key, place, wanted[name]), elements.view(np.uint8))
        except ValueError as error:
            raise self._damage(key, f"its chunk {place} {error}") from error
        self.caches.chunks.put(elements, elements.nbytes, key, place)
        return elements

    def _stored(self, key: str, place: int, wanted: list[int]) -> memoryview:
        """Return the stored bytes of one chunk, still compressed.

        key: the key of the shard. place: the chunk's index in the shard. wanted: indices of all
            chunks of the shard that the caller will need; if the chunk has to be requested, the
            wanted chunks close behind it are read by the same request.
        """
        index = self._index(key)
        start, stop = self._extent(key, index, place)
        part = self.caches.parts.get(key)
        if part is None or not part.start <= start <= stop <= part.stop:
            part = self._read(key, start, self._end(key, index, place, wanted, part))
            self.caches.parts.put(part, len(part.data), key)
        return memoryview(part.data)[start - part.start : stop - part.start]

    def _end(
        self, key: str, index: Array, place: int, wanted: list[int], before: _ShardBytes | None
    ) -> int:
        """Return the offset where a read should end that begins with chunk `place` of a shard.

        The read ends behind the last wanted chunk, or before the first large gap between wanted
        chunks. But a read that begins where the last read of the shard ended goes up to the
        shard's index.

        key, index: the shard's key, and its index (offsets and sizes of its chunks). wanted:
            indices of all chunks of the shard that the caller will need. before: the bytes of the
            last read of the shard; None if there was none.
        """
        start, stop = self._extent(key, index, place)
        if before is not None and before.stop == start:  # a reader goes through the whole shard
            return self.sizes[key] - self._index_bytes
        for other in sorted(set(wanted)):
            if other > place:
                begin, end = self._extent(key, index, other)
                if begin - stop > _GAP:
                    break
                stop = max(stop, end)
        return stop

    def _index(self, key: str) -> Array:
        index = self.caches.indexes.get(key)
        if index is not None:
            return index
        size = self._size(key)
        start = 0 if size <= _WHOLE else size - self._index_bytes
        part = self._read(key, start, size)
        try:
            index = parsed_shard_index(part.data[size - self._index_bytes - start :])
        except ValueError as error:
            raise self._damage(key, f"its index {error}") from error
        if not start:
            self.caches.parts.put(part, len(part.data), key)
        self.caches.indexes[key] = index
        return index

    @property
    def _index_bytes(self) -> int:
        return self.array.grid.shard_chunks * INDEX_ENTRY + _INDEX_CHECK

    def _extent(self, key: str, index: Array, place: int) -> tuple[int, int]:
        start, size = map(int, index[place])
        if start + size > self._size(key) - self._index_bytes:
            raise self._damage(key, f"its chunk {place} lies beyond its end")
        return start, start + size

    def _size(self, key: str) -> int:
        size = self.sizes.get(key)
        if size is None or size < self._index_bytes:
            raise DamagedError(f"{self.name}/sealed.json does not know {escape(key)}")
        return size

    def _read(self, key: str, start: int, stop: int) -> _ShardBytes:
        data = self.rank.get(key, start, stop - start)
        if data is None:
            raise self._damage(key, "it is missing")
        if len(data) != stop - start:
            raise self._damage(key, f"it is {stop - start - len(data)} bytes short")
        return _ShardBytes(start, data)

    def _damage(self, key: str, why: str) -> DamagedError:
        return DamagedError(f"{self.name}/{escape(key)} is damaged: {why}")
