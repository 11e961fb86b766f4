"""The chunk files that a writer keeps open, up to a limit: the least recently used is closed.

How many files a collector's process may have open is set by the server's `descriptor_limit`.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from anchorlib.store.disk import NodeWriter

__all__ = ["MOST_OPEN", "ChunkFiles"]

MOST_OPEN = 64
"""How many chunk files of values and labels the writer of one rank keeps open."""


class Chunked(Protocol):
    """What `ChunkFiles` needs to know of an array stored as chunk files: sizes, paths of chunks."""

    @property
    def nbytes(self) -> int:
        """How many bytes one row has."""

    @property
    def rows(self) -> int:
        """How many rows a chunk holds."""

    def file(self, chunk: int) -> str:
        """Return the path of the file of chunk number `chunk`."""


class ChunkFiles:
    """Keeps a limited number of chunk files open; the least recently used is closed first.

    limit: how many are open at a time. tree: makes the files, and knows which thread may write.
    """

    def __init__(self, limit: int, tree: NodeWriter) -> None:
        self.fsync = tree.fsync
        self._tree = tree
        self._limit = limit
        self._open: OrderedDict[tuple[Chunked, int], int] = OrderedDict()

    def descriptor(self, array: Chunked, chunk: int) -> int:
        """Return a descriptor, open for writing, of one chunk's file; a missing file is made."""
        self._tree.owner.check()
        key = (array, chunk)
        descriptor = self._open.get(key)
        if descriptor is not None:
            self._open.move_to_end(key)
            return descriptor
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        descriptor = self._create(array, chunk)
        self._open[key] = descriptor
        return descriptor

    def put(self, path: str, fill: Callable[[int], object]) -> int:
        """Create a file at `path`; return its descriptor, which the caller has to close.

        fill: a function that gets the descriptor and writes the file's content, before the file
        appears at `path`. Where the process has too many files open, all chunk files that are open
        here are closed, and the file is then created.
        """
        return self._with_room(lambda: self._tree.put(path, fill))

    def _create(self, array: Chunked, chunk: int) -> int:
        path, size = array.file(chunk), array.rows * array.nbytes
        try:
            descriptor = self._with_room(lambda: os.open(path, os.O_RDWR))
        except FileNotFoundError:
            return self.put(path, lambda made: os.ftruncate(made, size))
        try:
            # A file may have been cut from outside; earlier versions named files before they had
            # their size.
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _with_room(self, work: Callable[[], int]) -> int:
        try:
            return work()
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
        self.close()
        return work()

    def sync(self, descriptor: int) -> None:
        """Wait until the file's data is on disk, if the writer was opened with `fsync`."""
        if self.fsync:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Close all files; a later write opens again those that it needs."""
        while self._open:
            os.close(self._open.popitem()[1])
