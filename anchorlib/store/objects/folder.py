"""A directory used like an object store, for archives on a file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

from anchorlib.errors import StoreError
from anchorlib.names import quoted
from anchorlib.store.disk import NodeWriter, sync_directory
from anchorlib.store.format import hidden, is_safe_key
from anchorlib.store.locations import LocalLocation, Location
from anchorlib.store.objects.shelf import ObjectMetadata
from anchorlib.store.write import store_errors

__all__ = ["FolderShelf"]

_LOCK: Final = "archiving.lock"


class FolderShelf:
    """A directory in which archives are stored as objects; implements `Shelf`.

    Objects survive power loss once they are stored. Processes write one after the other, under a
    lock of the directory, for which they wait. A tag is a text that changes whenever the bytes of
    its object do: `fetch` and `swap` use a hash of the bytes, `held` uses inode and modification
    time.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._tree: NodeWriter | None = None

    @property
    def place(self) -> str:
        """The path of the directory, as `--store` takes it."""
        return str(self.root)

    @property
    def location(self) -> Location:
        """The location of the objects, for reading."""
        return LocalLocation(self.root)

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        """Return {key: size and tag} of all files below the folder `prefix`, "" for all.

        A tag here is made of inode and modification time, so that listing reads no file. It is not
        the tag that `fetch` returns.
        """
        return dict(self._below(prefix.strip("/")))

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return (the bytes of an object, a hash of them as its tag); None for no object."""
        self._check(key)
        data = self.location.get(key)
        return None if data is None else (data, _tag(data))

    def put(self, key: str, data: bytes) -> None:
        """Store `data` as the object at `key`; an object with that key is replaced."""
        with self._alone():
            self._write(key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Store `data` as the object at `key` unless there is an object already.

        Return False where that object has other bytes, otherwise True.
        """
        with self._alone():
            stored = self.fetch(key)
            if stored is None:
                self._write(key, data)
            return stored is None or stored[0] == data

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Store `data` as the object at `key` if the object still has the tag `tag`.

        `fetch` returned the tag. Return whether the object has the bytes of `data` now: True also
        where it already had them, False where it was changed otherwise or is gone.
        """
        with self._alone():
            stored = self.fetch(key)
            if stored is None or stored[1] != tag:
                return stored is not None and stored[0] == data
            self._write(key, data)
            return True

    def remove(self, key: str) -> None:
        """Remove an object; do nothing where there is none."""
        self._check(key)
        with self._alone():
            (self.root / key).unlink(missing_ok=True)

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        """Return whether the file at `key` has exactly the bytes of `data`.

        held: the file's size and tag as `held` returned them. The file is read if its size fits.
        """
        stored = self.fetch(key) if held.size == len(data) else None
        return stored is not None and stored[0] == data

    def _below(self, folder: str) -> Iterator[tuple[str, ObjectMetadata]]:
        for name in self.location.list(folder):
            key = f"{folder}/{name}".strip("/") if folder else name.rstrip("/")
            if name.endswith("/"):
                yield from self._below(key)
            else:
                status = (self.root / key).stat()
                yield key, ObjectMetadata(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}")

    def _write(self, key: str, data: bytes) -> None:
        self._check(key)
        path = self.root / key
        if self._tree is None:
            self._tree = NodeWriter(self.root, fsync=True)
        self._make(path.parent)
        os.close(self._tree.put(str(path), lambda descriptor: _fill(descriptor, data)))

    def _make(self, folder: Path) -> None:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for one in missing:
            sync_directory(one.parent)

    def _check(self, key: str) -> None:
        if not is_safe_key(key):
            raise StoreError(f"{quoted(key)} is no key of a store: it would lead out of it")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the directory inside the `with`: no other process writes meanwhile.

        Waits for the lock.
        """
        with store_errors(f"cannot write into {quoted(str(self.root))}"):
            (folder := hidden(self.root)).mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def _fill(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _tag(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
