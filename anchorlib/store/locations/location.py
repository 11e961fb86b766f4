"""Locations, from which stored bytes are read: a directory, or a collector that serves one.

A key is the path of a file, relative to the location ("run1.zarr/rank0/catalog/c.0"). A location
reads the bytes of the file at a key and lists the names in a folder, so every query runs unchanged
on a directory, a collector or an object store.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from anchorlib.errors import StoreError
from anchorlib.names import escape, quoted
from anchorlib.store.format import is_safe_key
from anchorlib.store.locations.safe_open import names_beneath, open_beneath

__all__ = [
    "CollectorLocation",
    "LocalLocation",
    "Location",
    "RowLocation",
    "RowSource",
    "Within",
    "read_into",
    "rows_at",
]


@runtime_checkable
class Location(Protocol):
    """Read access to stored files by key, a relative path that never leads upwards."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        The result is b"" where the file has no bytes from `start` on.
        length: None reads to the end of the file.
        """
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder.
        """
        ...


class RowSource(Protocol):
    """The rows of one array, at a location that does not store them in chunk files.

    Each method raises DamagedError where what it reads is damaged or missing.
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array's elements."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        ...

    @property
    def count(self) -> int:
        """How many rows there are."""
        ...

    def span(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return the rows `start` to `stop` - 1 as one array of shape (stop - start, *shape)."""
        ...

    def pick(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the rows with the numbers `rows`, in that order, as (len(rows), *shape)."""
        ...

    def part(self, row: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return the elements `start` to `stop` - 1 of one row, in C order, as a 1-d array."""
        ...


class RowLocation(ABC):
    """A location that can return rows of arrays (to `StoredRows`) as well as bytes of files."""

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        length: None reads to the end of the file.
        """

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder.
        """

    @abstractmethod
    def rows_of(self, key: str) -> RowSource | None:
        """Return a source of the rows of the array at `key`; None where there is no such array."""


class LocalLocation:
    """A directory of this machine as a location, without its hidden files.

    The directory itself may be a link. A link inside it, and anything but a file or a folder,
    raises StoreError when it is read.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # so that a later chdir does not change where it leads

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        length: None reads to the end of the file. Raises StoreError for a key that leads out of the
        directory, or to a link, pipe or device, and where the file cannot be read.
        """
        descriptor = self._open(key)
        if descriptor is None:
            return None
        try:
            return _read(descriptor, start, length)
        except (OSError, MemoryError) as error:
            raise self._unread(key, error) from error
        finally:
            os.close(descriptor)

    def read_into(self, key: str, start: int, out: memoryview) -> int | None:
        """Fill `out` with bytes of the file at `key` from `start` on.

        Return how many bytes were written into `out`, fewer than its size where the file ends;
        None where there is no file. Raises StoreError as `get` does.
        """
        descriptor = self._open(key)
        if descriptor is None:
            return None
        done = 0
        try:
            while done < len(out) and (count := os.preadv(descriptor, [out[done:]], start + done)):
                done += count
        except OSError as error:
            raise self._unread(key, error) from error
        finally:
            os.close(descriptor)
        return done

    def _open(self, key: str) -> int | None:
        try:
            return open_beneath(str(self.root), self._checked(key))
        except StoreError as error:
            raise StoreError(f"{escape(str(self.root))}/{error}") from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no file can have such a name
                return None
            raise self._unread(key, error) from error

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder. Raises StoreError for a key that leads out of the
        directory, or over a link, pipe or device, and where the folder cannot be listed.
        """
        key = self._checked(prefix.rstrip("/")) if prefix.strip("/") else ""
        try:
            return names_beneath(str(self.root), key)
        except StoreError as error:
            raise StoreError(f"{escape(str(self.root))}/{error}") from None
        except OSError as error:
            where = f"{self.root}/{key}" if key else str(self.root)
            raise StoreError(f"cannot list {escape(where)}: {error.strerror}") from error

    def _checked(self, key: str) -> str:
        if not is_safe_key(key):
            raise StoreError(f"{quoted(key)} is no key of a store: it would lead out of it")
        return key

    def _unread(self, key: str, error: Exception) -> StoreError:
        why = error.strerror if isinstance(error, OSError) else "there is no memory for all of it"
        return StoreError(f"cannot read {escape(f'{self.root}/{key}')}: {why}")

    def __repr__(self) -> str:
        return f"LocalLocation({str(self.root)!r})"


class CollectorLocation:
    """The store that a collector serves, as a location.

    client: reads and lists keys at the collector, with the methods of `Location`; raises
        CollectorError.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        length: None reads to the end of the file. Raises StoreError for a key that leads out of the
        store, CollectorError where the collector refuses or does not answer.
        """
        if not is_safe_key(key):
            raise StoreError(f"{key!r} is no key of a store")
        data: bytes | None = self.client.get(key, start, length)
        return data

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder. Raises StoreError for a key that leads out of the store,
        CollectorError where the collector refuses or does not answer.
        """
        if prefix.strip("/") and not is_safe_key(prefix.rstrip("/")):
            raise StoreError(f"{prefix!r} is no key of a store")
        names: list[str] = self.client.list(prefix)
        return sorted(names)

    def __repr__(self) -> str:
        return f"CollectorLocation({self.client!r})"


def read_into(location: Location, key: str, start: int, out: memoryview) -> int | None:
    """Fill `out` with bytes of the file at `key` of a location, from `start` on.

    Return how many bytes were written into `out`, fewer than its size where the file ends; None
    where there is no file. Bytes of a local file are read straight into `out`, without a copy.
    """
    while isinstance(location, Within):
        key = location.prefix + key
        location = location.outer
    if isinstance(location, LocalLocation):
        return location.read_into(key, start, out)
    data = location.get(key, start, len(out))
    if data is not None:
        out[: len(data)] = data
    return None if data is None else len(data)


def rows_at(location: Location, key: str) -> RowSource | None:
    """Return a source of the rows of the array at `key`; None where they lie in chunk files.

    Locations of sealed (archived) ranks have such sources; everywhere else the result is None.
    """
    while isinstance(location, Within):
        key = location.prefix + key
        location = location.outer
    return location.rows_of(key) if isinstance(location, RowLocation) else None


class Within:
    """A folder of another location as a location of its own: keys are relative to the folder."""

    def __init__(self, outer: Location, prefix: str) -> None:
        self.outer = outer
        self.prefix = prefix.strip("/") + "/"

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        length: None reads to the end of the file.
        """
        return self.outer.get(self.prefix + key, start, length)

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder.
        """
        return self.outer.list(self.prefix + prefix)

    def __repr__(self) -> str:
        return f"Within({self.outer!r}, {self.prefix!r})"


def _read(descriptor: int, start: int, length: int | None) -> bytes:
    rest = max(os.fstat(descriptor).st_size - start, 0)
    length = rest if length is None else min(length, rest)  # no memory for bytes that are not there
    data = os.pread(descriptor, length, start)
    # One call gives all a file has, up to 2 GiB.
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), start + len(data))
        if not more:
            break
        data += more
    return data
