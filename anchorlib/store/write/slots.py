"""Rows written in place into the chunk files of a zarr array.

An array here is rows of equal size, R rows a chunk, uncompressed. A chunk file is made outside the
tree at its full size (sparse) and then put in place, because every reader refuses a short one; rows
are written at their place: valid zarr at every moment, and nothing that was published is touched
again.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anchorlib.store.disk import Tree
from anchorlib.store.format import chunk_key

__all__ = ["ChunkFiles", "SlotArray"]

Buffer = bytes | memoryview


class ChunkFiles:
    """Open chunk files; the one used longest ago is closed first.

    limit: how many are open at a time. tree: makes the files, and knows which thread may write.
    """

    def __init__(self, limit: int, tree: Tree) -> None:
        self.fsync = tree.fsync
        self._tree = tree
        self._limit = limit
        self._open: OrderedDict[tuple[SlotArray, int], int] = OrderedDict()

    def descriptor(self, array: SlotArray, chunk: int) -> int:
        """The descriptor of one chunk's file, opened for writing; the file is made if need be."""
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
        """Puts a new file in place, see `Tree.put`.

        Closes the other chunk files first where the process has too many files open.
        """
        return self._with_room(lambda: self._tree.put(path, fill))

    def _create(self, array: SlotArray, chunk: int) -> int:
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
        """Waits for the disk where the writer promised to survive power loss."""
        if self.fsync:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Closes all files; the next write opens those that it needs."""
        while self._open:
            os.close(self._open.popitem()[1])


@dataclass(slots=True, eq=False)
class SlotArray:
    """The rows of one array on disk.

    path: the array's directory. nbytes: bytes of one row. rows: how many a chunk holds.
    dims: dimensions of a row, which are those of the array behind the first.
    """

    files: ChunkFiles
    path: str
    nbytes: int
    rows: int
    dims: int = 0

    def file(self, chunk: int) -> str:
        """The path of one chunk's file."""
        return f"{self.path}/{chunk_key(chunk, self.dims)}"

    def write_packed(self, start: int, packed: Buffer) -> None:
        """Writes consecutive rows from row `start` on, which lie in one buffer end to end."""
        if self.rows == 1:
            for row, place in enumerate(range(0, len(packed), self.nbytes), start):
                self._write_file(row, memoryview(packed)[place : place + self.nbytes])
            return
        chunk, slot = divmod(start, self.rows)
        size = len(packed)
        if slot + size // self.nbytes <= self.rows:  # as nearly always
            descriptor = self.files.descriptor(self, chunk)
            write_all(descriptor, (packed,), slot * self.nbytes, size)
            self.files.sync(descriptor)
            return
        view = memoryview(packed)
        while view:
            chunk, slot = divmod(start, self.rows)
            count = min(self.rows - slot, len(view) // self.nbytes)
            size = count * self.nbytes
            descriptor = self.files.descriptor(self, chunk)
            write_all(descriptor, (view[:size],), slot * self.nbytes, size)
            self.files.sync(descriptor)
            view = view[size:]
            start += count

    def _write_file(self, chunk: int, row: Buffer) -> None:
        # Large records: written once and closed, so they take no place among the open files.
        whole = (row,), 0, self.nbytes
        os.close(self.files.put(self.file(chunk), lambda made: write_all(made, *whole)))


def write_all(descriptor: int, buffers: Sequence[Buffer], offset: int, size: int) -> None:
    """Writes all `size` bytes of the buffers: pwritev writes at most 2 GiB, and may write less."""
    written = os.pwritev(descriptor, buffers, offset)
    if written == size:
        return
    flat = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    whole = flat[0] if len(flat) == 1 else np.concatenate(flat)
    while written < size:
        written += os.pwrite(descriptor, whole[written:].data, offset + written)
