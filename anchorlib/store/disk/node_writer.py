"""Puts groups and arrays into a live zarr hierarchy so that no reader ever meets half of one.

A node (a group or an array) is made under `.anchor/tmp` of the same file system and renamed into
the hierarchy, and so is each new version of a zarr.json: whoever lists the hierarchy never meets a
directory without metadata, a half-written document or a stray file.
"""

# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH120  # Path objects cost more than the calls here

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from anchorlib.store.disk.writing_thread import Owner
from anchorlib.store.format import hidden

__all__ = ["NodeWriter", "sync_directory"]

STALE_SECONDS = 86_400.0
NOTHING: Mapping[str, bytes] = MappingProxyType({})


class NodeWriter:
    """Creates, replaces and removes zarr nodes (groups and arrays) below one store directory.

    fsync: whether each change waits until the disk has it.

    owner: knows the one thread that may write there. After `owner.revoke` no node can be made or
        removed any more: the methods raise StoreError.
    """

    def __init__(self, store: Path, *, fsync: bool = False) -> None:
        self.owner = Owner()
        self.fsync = fsync
        tmp = hidden(store) / "tmp"
        tmp.mkdir(parents=True, exist_ok=True)
        sweep(tmp)
        # Several processes, on several hosts, share the directory: pid and random bytes keep their
        # names apart.
        self._prefix = f"{tmp}/{os.getpid()}-{os.urandom(4).hex()}-"
        self._names = itertools.count()

    def fresh(self) -> Path:
        """Return a path in the temporary directory that nobody else uses."""
        return Path(self._fresh())

    def _fresh(self) -> str:
        # Every node that is put in place or taken out has such a path: a revoked owner stops here.
        self.owner.check()
        return f"{self._prefix}{next(self._names)}"

    def make(self, node: Path | str, document: bytes, below: Mapping[str, bytes] = NOTHING) -> None:
        """Create a group or array without chunk files at `node`; an old node there is removed.

        document: the new node's zarr.json. below: {path: zarr.json} of further nodes, by their path
            below the new node, parents first.
        """
        self.move_in(self.made(document, below), node)

    def ensure(self, node: Path, document: bytes) -> None:
        """Create a group at `node` unless there is one; the members of an existing group stay.

        Ranks that start together all create the group of their run: a later rank must not remove
        what the first rank has put inside. document: the group's zarr.json.
        """
        if (node / "zarr.json").exists():
            return
        made = self.made(document)
        try:
            os.rename(made, node)
        except OSError:  # ENOTEMPTY or EEXIST: another rank was first, or it lacks its zarr.json
            if (node / "zarr.json").exists():
                shutil.rmtree(made, ignore_errors=True)
            else:
                os.rename(f"{made}/zarr.json", node / "zarr.json")
                os.rmdir(made)
        if self.fsync:
            sync_directory(node.parent)

    def made(self, document: bytes, below: Mapping[str, bytes] = NOTHING) -> str:
        """Create a directory with zarr.json `document` outside the hierarchy; return its path.

        The caller has to move the directory into the hierarchy with `move_in`.
        below: {path: zarr.json} of further nodes, by their path below the new node, parents first.
        """
        made = self._fresh()
        nodes = {made: document, **{f"{made}/{path}": text for path, text in below.items()}}
        for node, text in nodes.items():
            os.mkdir(node)
            self._write(f"{node}/zarr.json", text)
        for node in nodes if self.fsync else ():
            sync_directory(node)
        return made

    def move_in(self, made: Path | str, node: Path | str) -> None:
        """Move the finished directory `made` to `node` by a rename; remove what was at `node`."""
        try:
            os.rename(made, node)
        except OSError:  # ENOTEMPTY or EEXIST: file systems differ
            self.remove(node)
            os.rename(made, node)
        if self.fsync:
            sync_directory(os.path.dirname(node))

    def replace(self, node: Path | str, document: bytes) -> None:
        """Replace the zarr.json of an existing node by `document`, with one rename."""
        made = self._fresh()
        self._write(made, document)
        os.rename(made, f"{node}/zarr.json")
        if self.fsync:
            sync_directory(node)

    def put(self, path: str, fill: Callable[[int], object]) -> int:
        """Create a file, put it at `path` once `fill` has written it; return its open descriptor.

        A file at `path` is replaced. Where anything fails before the file is in place, no new file
        is left behind. The caller has to close the descriptor.
        fill: called with the descriptor of the empty file, to write the content.
        """
        made = self._fresh()
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fill(descriptor)
            if self.fsync:
                os.fdatasync(descriptor)
            os.rename(made, path)
            if self.fsync:
                sync_directory(os.path.dirname(path))
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(made)
            raise
        return descriptor

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file at `path`, inside a node that is not in the hierarchy yet."""
        self._write(str(path), data)
        if self.fsync:
            sync_directory(path.parent)

    def remove(self, node: Path | str) -> None:
        """Move a node (group or array) out of the hierarchy at once, then delete it.

        Does nothing where there is no such node.
        """
        gone = self.fresh()
        try:
            os.rename(node, gone)
        except FileNotFoundError:
            return
        delete(gone)

    def _write(self, path: str, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            while data:  # a disk that fills up takes a part, and fails with the next call alone
                data = data[os.write(descriptor, data) :]
            if self.fsync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def sweep(tmp: Path) -> None:
    """Delete temporary files in `tmp` older than a day, which a killed writer left.

    No writer takes a day to put a node in place.
    """
    for path in tmp.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > STALE_SECONDS:
                delete(path)


def delete(path: Path) -> None:
    """Delete a file, or a directory with its contents, that is outside the zarr hierarchy.

    What cannot be deleted inside a directory is left; a missing file is no error.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_directory(path: Path | str) -> None:
    """Wait until the names in a directory are on disk, so that they survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
