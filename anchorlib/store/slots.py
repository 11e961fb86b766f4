"""Rows written in place into the chunk files of a zarr array.

An array here is rows of equal size, R rows a chunk, uncompressed. A chunk file is made outside the
tree at its full size (sparse) and then put in place, because every reader refuses a short one; rows
are written at their place: valid zarr at every moment, and nothing that was published is touched
again.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anchorlib.store.layout import chunk_key
from anchorlib.store.tree import Tree

__all__ = ["ChunkFiles", "SlotArray"]

Buffer = bytes | memoryview

IOV_MAX = 1024  # buffers that one pwritev takes, on Linux and macOS


LEFT_TO_OTHERS = 8192
MOST_OPEN = 16384


class Allowance:
    """How many chunk files the writers of this process may keep open together.

    One that needs more may have what others do not use; where all is used, each has an equal
    share. A step that goes round more series than that opens a file for each record. What is left
    to the process is 8,192 files, or three quarters of them where it may open fewer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers = 0
        self._open = 0

    def allows(self, mine: int) -> bool:
        """Whether a writer that has `mine` open may keep them all and open one more."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_OPEN
        if soft != resource.RLIM_INFINITY:
            most = min(max(soft // 4, soft - LEFT_TO_OTHERS), MOST_OPEN)
        return self._open < most or mine < most // max(self._writers, 1)

    def count(self, files: int, writers: int = 0) -> None:
        """So many more are open now, of so many more writers."""
        with self._lock:
            self._open += files
            self._writers += writers


SHARED = Allowance()


class ChunkFiles:
    """Open chunk files; the one used longest ago is closed first.

    limit: of those that are open at a time; None: what `SHARED` allows. tree: where they are
    made, and whose they are.
    """

    def __init__(self, limit: int | None, tree: Tree) -> None:
        self.fsync = tree.fsync
        self._tree = tree
        self._limit = limit
        self._open: OrderedDict[tuple[SlotArray, int], int] = OrderedDict()

    def descriptor(self, array: SlotArray, chunk: int) -> int:
        """The file of one chunk, at its full size, to be written to."""
        self._tree.owner.check()
        key = (array, chunk)
        descriptor = self._open.get(key)
        if descriptor is not None:
            self._open.move_to_end(key)
            return descriptor
        self._make_room()
        descriptor = self._create(array, chunk)
        self._open[key] = descriptor
        self._count(1)
        return descriptor

    def _make_room(self) -> None:
        while self._open and not self._has_room():
            os.close(self._open.popitem(last=False)[1])
            self._count(-1)

    def _has_room(self) -> bool:
        if self._limit is None:
            return SHARED.allows(len(self._open))
        return len(self._open) < self._limit

    def _count(self, files: int) -> None:
        """Is told after each opening and closing."""
        if self._limit is None:
            first = files > 0 and len(self._open) == 1
            last = files < 0 and not self._open
            SHARED.count(files, int(first) - int(last))

    def put(self, path: str, fill: Callable[[int], object]) -> int:
        """See `Tree.put`; gives the others up where the process has too many open."""
        return self._with_room(lambda: self._tree.put(path, fill))

    def _create(self, array: SlotArray, chunk: int) -> int:
        path, size = array.file(chunk), array.rows * array.nbytes
        try:
            descriptor = self._with_room(lambda: os.open(path, os.O_RDWR))
        except FileNotFoundError:
            return self.put(path, lambda made: os.ftruncate(made, size))
        try:
            if os.fstat(descriptor).st_size != size:  # cut short from outside, or by a version
                os.ftruncate(descriptor, size)  # that sized files only once they had their names
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
        """Closes them all; the next write opens what it needs."""
        while self._open:
            os.close(self._open.popitem()[1])
            self._count(-1)


@dataclass(slots=True, eq=False)
class SlotArray:
    """One array's rows on disk.

    path: the array's directory. nbytes: of one row. rows: a chunk holds. dims: further dimensions.
    """

    files: ChunkFiles
    path: str
    nbytes: int
    rows: int
    dims: int = 0

    def file(self, chunk: int) -> str:
        """The path of one chunk."""
        return f"{self.path}/{chunk_key(chunk, self.dims)}"

    def write(self, start: int, rows: Sequence[Buffer]) -> None:
        """Writes consecutive rows from row `start` on, each buffer one row."""
        if self.nbytes == 0:
            return
        if self.rows == 1:
            for index, row in enumerate(rows, start):
                self._write_file(index, row)
            return
        files, done = self.files, 0
        while done < len(rows):
            chunk, slot = divmod(start + done, self.rows)
            batch = rows[done : done + min(self.rows - slot, IOV_MAX)]
            descriptor = files.descriptor(self, chunk)
            write_all(descriptor, batch, slot * self.nbytes, len(batch) * self.nbytes)
            if files.fsync:
                files.sync(descriptor)
            done += len(batch)

    def write_row(self, row: int, values: Buffer) -> None:
        """Writes one row: what a step with many tensors comes to, again and again."""
        if self.nbytes == 0:
            return
        if self.rows == 1:
            self._write_file(row, values)
            return
        chunk, slot = divmod(row, self.rows)
        descriptor = self.files.descriptor(self, chunk)
        write_all(descriptor, (values,), slot * self.nbytes, self.nbytes)
        if self.files.fsync:
            self.files.sync(descriptor)

    def write_packed(self, start: int, packed: Buffer) -> None:
        """Writes consecutive rows that lie in one buffer already."""
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
    """pwritev, continued where the system wrote less than `size` bytes (2 GiB is its most)."""
    written = os.pwritev(descriptor, buffers, offset)
    if written == size:
        return
    flat = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    whole = flat[0] if len(flat) == 1 else np.concatenate(flat)
    while written < size:
        written += os.pwrite(descriptor, whole[written:].data, offset + written)
