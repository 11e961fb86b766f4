"""Elements read from the shards of one sealed array, in as few requests as their places allow.

Of a shard the index is read once, then what lies between the first and the last chunk that are
wanted, in two parts at most. A reader that goes on where it stopped gets the rest of the shard with
its second request. Each chunk is compared with its checksum before anybody sees it.
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
from anchorlib.store.seal.codecs import INDEX_ENTRY, expanded, parsed_index
from anchorlib.store.seal.grid import SHARD_BYTES

__all__ = ["Kept", "ShardedElements"]

Array = np.ndarray[Any, Any]
_INDEX_CHECK: Final = 4
_WHOLE: Final = 1 << 20  # bytes of an object up to which it is read as a whole
_GAP: Final = 8 << 20  # bytes that nobody wants, for which a request more is made
_CHUNKS_BYTES: Final = 32 << 20


@dataclass(slots=True)
class _Last:
    """What was read last, up to so many bytes, but one entry at least."""

    limit: int
    _entries: OrderedDict[tuple[str, int], tuple[Any, int]] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def get(self, key: str, place: int = 0) -> Any:
        """What was put there last, None where that was given up."""
        found = self._entries.get((key, place))
        if found is None:
            return None
        self._entries.move_to_end((key, place))
        return found[0]

    def put(self, value: Any, nbytes: int, key: str, place: int = 0) -> None:
        """Keeps a value, and gives up those that were not asked for for the longest."""
        self._bytes += nbytes - self._entries.pop((key, place), (None, 0))[1]
        self._entries[key, place] = value, nbytes
        while self._bytes > self.limit and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was read of all arrays of a rank: decoded chunks, parts of shards, and indexes."""

    chunks: _Last = field(default_factory=lambda: _Last(_CHUNKS_BYTES))
    parts: _Last = field(default_factory=lambda: _Last(SHARD_BYTES))
    indexes: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a shard from `start` on."""

    start: int
    data: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class ShardedElements:
    """The elements of one array, flat, in C order.

    rank: the location of the rank's objects. sizes: of each object, by its key in the rank, as
    `sealed.json` tells them. name: of the rank, for errors.
    """

    rank: Location
    name: str
    array: SealedArray
    sizes: Mapping[str, int]
    kept: Kept

    def spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[Array]:
        """The elements of each span, start … stop - 1. Raises DamagedError, naming the object."""
        grid = self.array.grid
        wanted: dict[str, list[int]] = {}
        for start, stop in spans:
            for chunk, _, _ in grid.pieces(start, stop):
                name, place = grid.place(chunk)
                wanted.setdefault(name, []).append(place)
        for start, stop in spans:
            found = np.empty(stop - start, self.array.dtype)
            at = 0
            for chunk, offset, count in grid.pieces(start, stop):
                found[at : at + count] = self._chunk(chunk, wanted)[offset : offset + count]
                at += count
            yield found

    def _chunk(self, number: int, wanted: Mapping[str, list[int]]) -> Array:
        name, place = self.array.grid.place(number)
        key = f"{self.array.key}/{name}"
        known: Array | None = self.kept.chunks.get(key, place)
        if known is not None:
            return known
        found = np.empty(self.array.grid.chunk_elements, self.array.dtype)
        try:
            expanded(self._stored(key, place, wanted[name]), found.view(np.uint8))
        except ValueError as error:
            raise self._damage(key, f"its chunk {place} {error}") from error
        self.kept.chunks.put(found, found.nbytes, key, place)
        return found

    def _stored(self, key: str, place: int, wanted: list[int]) -> memoryview:
        """The bytes of one chunk as they are stored."""
        index = self._index(key)
        start, stop = self._extent(key, index, place)
        part = self.kept.parts.get(key)
        if part is None or not part.start <= start <= stop <= part.stop:
            part = self._read(key, start, self._end(key, index, place, wanted, part))
            self.kept.parts.put(part, len(part.data), key)
        return memoryview(part.data)[start - part.start : stop - part.start]

    def _end(
        self, key: str, index: Array, place: int, wanted: list[int], before: _Part | None
    ) -> int:
        """Where to stop reading that begins with the chunk at `place`."""
        start, stop = self._extent(key, index, place)
        if before is not None and before.stop == start:  # somebody goes through all of it
            return self.sizes[key] - self._index_bytes
        for other in sorted(set(wanted)):
            if other > place:
                begin, end = self._extent(key, index, other)
                if begin - stop > _GAP:
                    break
                stop = max(stop, end)
        return stop

    def _index(self, key: str) -> Array:
        index = self.kept.indexes.get(key)
        if index is not None:
            return index
        size = self._size(key)
        start = 0 if size <= _WHOLE else size - self._index_bytes
        part = self._read(key, start, size)
        try:
            index = parsed_index(part.data[size - self._index_bytes - start :])
        except ValueError as error:
            raise self._damage(key, f"its index {error}") from error
        if not start:
            self.kept.parts.put(part, len(part.data), key)
        self.kept.indexes[key] = index
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

    def _read(self, key: str, start: int, stop: int) -> _Part:
        data = self.rank.get(key, start, stop - start)
        if data is None:
            raise self._damage(key, "it is missing")
        if len(data) != stop - start:
            raise self._damage(key, f"it is {stop - start - len(data)} bytes short")
        return _Part(start, data)

    def _damage(self, key: str, why: str) -> DamagedError:
        return DamagedError(f"{self.name}/{escape(key)} is damaged: {why}")
