"""A location as a read-only zarr store, so that zarr and xarray open the runs of a collector.

xarray.open_zarr(as_zarr(find_run("grpc://host:50051/run1").location),
                 group="rank0/forms/float32_10", consolidated=False)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import NoReturn

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from anchorlib.errors import StoreError
from anchorlib.store.format import is_safe_key
from anchorlib.store.locations.location import Location

__all__ = ["LocationStore"]


class LocationStore(Store):
    """A zarr store that reads the keys of a location; its methods that write raise StoreError."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, location: Location) -> None:
        super().__init__(read_only=True)
        self._location = location

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return bytes of the file at `key`, in `prototype`'s buffer; None where there is no file.

        A key with a segment that begins with a dot has no file. The file is read in a thread,
        because locations wait for disks and networks. byte_range: None for the whole file.
        """
        data = await asyncio.to_thread(self._read, key, byte_range)
        return None if data is None else prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Return the bytes of each (key, range), read concurrently; None where there is no file."""
        return list(await asyncio.gather(*(self.get(k, prototype, r) for k, r in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Return whether there is a file at `key`."""
        return await asyncio.to_thread(self._read, key, RangeByteRequest(0, 1)) is not None

    async def list(self) -> AsyncIterator[str]:
        """Yield the keys of all files of the location."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys of all files below the folder `prefix` ("" is the root), at any depth."""
        folder = prefix.rstrip("/")
        for name in await asyncio.to_thread(self._children, folder):
            path = f"{folder}/{name}".lstrip("/")
            if not name.endswith("/"):
                yield path
                continue
            async for key in self.list_prefix(path):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of the files and folders directly in the folder `prefix`, without "/"."""
        for name in await asyncio.to_thread(self._children, prefix.rstrip("/")):
            yield name.rstrip("/")

    async def set(self, key: str, value: Buffer) -> NoReturn:  # noqa: ARG002 - zarr names it
        """Raise StoreError: the store is read-only."""
        raise StoreError(f"{key} cannot be written: this view of a run only reads")

    async def delete(self, key: str) -> NoReturn:
        """Raise StoreError: the store is read-only."""
        raise StoreError(f"{key} cannot be deleted: this view of a run only reads")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocationStore) and other._location is self._location

    def __hash__(self) -> int:
        return hash(id(self._location))

    def __repr__(self) -> str:
        return f"LocationStore({self._location!r})"

    def _children(self, folder: str) -> Iterable[str]:
        return self._location.list(folder) if not folder or is_safe_key(folder) else []

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        if not is_safe_key(key):  # zarr also asks for ".zgroup" and the like
            return None
        match byte_range:
            case None:
                return self._location.get(key)
            case RangeByteRequest(start=start, end=end):
                return self._location.get(key, start, end - start)
            case OffsetByteRequest(offset=offset):
                return self._location.get(key, offset)
            case SuffixByteRequest(suffix=suffix):
                data = self._location.get(key)
                return data if data is None else data[-suffix:]
