"""Nodes of a live zarr hierarchy, put in place whole.

A node is made under `.anchor/tmp` of the same file system and renamed into the tree, and so is each
new version of a zarr.json: whoever lists the hierarchy never meets a directory without metadata, a
half-written document or a stray file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from pathlib import Path

from anchorlib.store.layout import hidden

__all__ = ["Tree", "make_store"]

STALE_SECONDS = 86_400.0


class Tree:
    """Makes, replaces and removes nodes below one store directory."""

    def __init__(self, store: Path, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self._tmp = hidden(store) / "tmp"
        self._tmp.mkdir(parents=True, exist_ok=True)
        self._sweep()
        # Several processes share the directory: theirs differ by pid and host-unique randomness.
        self._prefix = f"{os.getpid()}-{os.urandom(4).hex()}-"
        self._names = itertools.count()

    def _sweep(self) -> None:
        # What a killed writer left; a day is longer than any node takes to be put in place.
        for path in self._tmp.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > STALE_SECONDS:
                    delete(path)

    def fresh(self) -> Path:
        """A path in the temporary directory that nobody else uses."""
        return self._tmp / f"{self._prefix}{next(self._names)}"

    def make(self, node: Path, document: bytes) -> None:
        """Puts a new node in place, an empty group or array; an old one loses its contents."""
        self.move_in(self.made(document), node)

    def ensure(self, node: Path, document: bytes) -> None:
        """Makes a group unless it is there; its members stay.

        Ranks that start together all come here for one run: whoever is late must not take away
        what the first has put inside since.
        """
        if (node / "zarr.json").exists():
            return
        made = self.made(document)
        try:
            made.rename(node)
        except OSError:  # ENOTEMPTY or EEXIST: another rank was first, or it was an empty shell
            if (node / "zarr.json").exists():
                shutil.rmtree(made, ignore_errors=True)
            else:
                (made / "zarr.json").rename(node / "zarr.json")
                made.rmdir()
        if self._fsync:
            sync_directory(node.parent)

    def made(self, document: bytes) -> Path:
        """A directory with this zarr.json outside the tree, for `move_in`."""
        made = self.fresh()
        made.mkdir()
        self._write(made / "zarr.json", document)
        if self._fsync:
            sync_directory(made)
        return made

    def move_in(self, made: Path, node: Path) -> None:
        """Renames a finished directory to its place; what stands there is removed."""
        try:
            made.rename(node)
        except OSError:  # ENOTEMPTY or EEXIST, as the file system likes
            self.remove(node)
            made.rename(node)
        if self._fsync:
            sync_directory(node.parent)

    def replace(self, node: Path, document: bytes) -> None:
        """A new version of a node's zarr.json."""
        made = self.fresh()
        self._write(made, document)
        made.rename(node / "zarr.json")
        if self._fsync:
            sync_directory(node)

    def write(self, path: Path, data: bytes) -> None:
        """A new file of a node that is not in the tree yet."""
        self._write(path, data)
        if self._fsync:
            sync_directory(path.parent)

    def remove(self, node: Path) -> None:
        """Takes a node out of the tree at once, then deletes it."""
        gone = self.fresh()
        try:
            node.rename(gone)
        except FileNotFoundError:
            return
        delete(gone)

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            while data:  # a disk that fills up takes a part and says so with the next call
                data = data[os.write(descriptor, data) :]
            if self._fsync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def delete(path: Path) -> None:
    """Deletes a file or a directory that is outside the tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_store(store: Path, *, fsync: bool) -> None:
    """Makes a store's directory, and those above it, unless they are there."""
    above = [path for path in (store, *store.parents) if not path.exists()]
    store.mkdir(parents=True, exist_ok=True)
    for path in above if fsync else ():
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
