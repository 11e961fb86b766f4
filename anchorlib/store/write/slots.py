"""Writes rows in place into the chunk files of a zarr array.

An array here is rows of equal size, R rows a chunk, uncompressed. A chunk file is made outside the
zarr hierarchy at its full size (sparse) and then moved into it, because every reader refuses a
short one. Each row is written at its offset: the array is valid zarr at every moment, and nothing
that was published is touched again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorlib.store.format import chunk_key
from anchorlib.store.write.open_files import ChunkFiles

__all__ = ["SlotArray", "write_all"]

Buffer = bytes | memoryview


@dataclass(slots=True, eq=False)
class SlotArray:
    """An array on disk whose rows, all of one size, are written at their offsets in chunk files.

    path: the array's directory. nbytes: bytes of one row. rows: how many rows a chunk holds.
    dims: the number of dimensions of one row.
    """

    files: ChunkFiles
    path: str
    nbytes: int
    rows: int
    dims: int = 0

    def file(self, chunk: int) -> str:
        """Return the path of the file of chunk number `chunk`."""
        return f"{self.path}/{chunk_key(chunk, self.dims)}"

    def write_packed(self, start: int, packed: Buffer) -> None:
        """Write rows, which `packed` holds end to end; the first becomes row number `start`."""
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
    """Write all `size` bytes of the buffers at `offset` of the file, in as many calls as needed.

    One pwritev writes at most 2 GiB, and may write less than it was asked to.
    """
    written = os.pwritev(descriptor, buffers, offset)
    if written == size:
        return
    flat = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    whole = flat[0] if len(flat) == 1 else np.concatenate(flat)
    while written < size:
        written += os.pwrite(descriptor, whole[written:].data, offset + written)
