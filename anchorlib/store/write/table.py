"""Writes the table of one rank: a row for each record, a file for each 65,536 rows of a column.

`append` writes each column of a block with one call; `commit` writes `seq`, after which the rows
exist. Rows that were appended and not committed are overwritten by the next block.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.store.disk import NodeWriter
from anchorlib.store.format import (
    CATALOG_CHUNK,
    COLUMNS,
    HIST_COLUMNS,
    ROW,
    ROWS_PER_CHUNK,
    ArrayShape,
    array_json,
    chunk_key,
)
from anchorlib.store.write.open_files import ChunkFiles
from anchorlib.store.write.slots import SlotArray

__all__ = ["CatalogFile", "RowTable"]


class RowTable:
    """Appends rows and their histograms to the columns in the directory `records`.

    rows, pairs: how many committed rows and histogram pairs the table has.
    """

    def __init__(self, records: Path, rows: int, pairs: int, tree: NodeWriter) -> None:
        self.rows = rows
        self.pairs = pairs
        self._files = ChunkFiles(len(COLUMNS) + len(HIST_COLUMNS), tree)
        self._columns = {
            name: SlotArray(self._files, f"{records}/{name}", dtype.itemsize, ROWS_PER_CHUNK)
            for name, dtype in (COLUMNS | HIST_COLUMNS).items()
        }

    def append(self, packed: bytes, checks: list[int], exponents: bytes, counts: bytes) -> None:
        """Write packed rows, their checksums and histogram pairs behind the committed rows.

        packed: rows, end to end. checks: the checksum of each. exponents, counts: the pairs of all
            histograms, as bytes. The rows exist once `commit` was called.
        """
        if exponents:
            self._columns["hist_exponent"].write_packed(self.pairs, exponents)
            self._columns["hist_count"].write_packed(self.pairs, counts)
        rows = np.frombuffer(packed, ROW)
        for name in ROW.names or ():
            self._columns[name].write_packed(self.rows, rows[name].tobytes())
        check_column = np.array(checks, COLUMNS["check"])
        self._columns["check"].write_packed(self.rows, check_column.tobytes())

    def commit(self, rows: int, pairs: int) -> None:
        """Commit the next `rows` appended rows and `pairs` histogram pairs: they exist now.

        Raises OSError where the disk fails or is full; the rows are then not committed.
        """
        seq = np.arange(self.rows + 1, self.rows + rows + 1, dtype=COLUMNS["seq"])
        try:
            self._columns["seq"].write_packed(self.rows, seq.tobytes())
        except OSError:
            # After a failed fsync the next one may succeed although the data never reached the
            # disk. So `seq` is blanked: the rows stay uncommitted, and their caller sends them
            # again.
            with contextlib.suppress(OSError):
                self._columns["seq"].write_packed(self.rows, bytes(seq.nbytes))
            raise
        self.rows += rows
        self.pairs += pairs

    def close(self) -> None:
        """Close the columns' files; a later append opens them again."""
        self._files.close()


class CatalogFile:
    """Appends lines to a catalogue, or to another log of lines that is stored in the same way.

    path: the directory of the byte array. end: the offset behind its last complete line.
    """

    def __init__(self, path: Path, end: int, tree: NodeWriter) -> None:
        self.end = end
        self._files = ChunkFiles(1, tree)
        self._bytes = SlotArray(self._files, str(path), 1, CATALOG_CHUNK)

    def append(self, lines: bytes) -> None:
        """Write complete lines behind the last complete line, also across the end of a chunk."""
        self._bytes.write_packed(self.end, lines)
        self.end += len(lines)

    def erase_rest(self) -> None:
        """Zero bytes that a crash left behind the last complete line, up to the chunk's end."""
        size = CATALOG_CHUNK - self.end % CATALOG_CHUNK
        self._bytes.write_packed(self.end, bytes(size))

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        self._files.close()


def make_columns(records: Path, tree: NodeWriter) -> None:
    """Create the empty arrays of a table's columns in the directory `records`."""
    for name, dtype in (COLUMNS | HIST_COLUMNS).items():
        tree.make(records / name, array_json(column_shape(dtype, name)))


def column_shape(dtype: np.dtype[Any], name: str) -> ArrayShape:
    """Return the layout of the array of a table's column `name`, with no rows yet."""
    dimension = "pair" if name in HIST_COLUMNS else "record"
    return ArrayShape(dtype, (0,), (ROWS_PER_CHUNK,), (dimension,))


def erase_rows_after(records: Path, rows: int) -> None:
    """Zero the entries of `seq` behind the committed rows; delete the later chunk files of `seq`.

    rows: how many rows are committed. A power loss may keep a later page of `seq` and lose an
        earlier one. Once new rows reached the page that was kept, its old entries would mark rows
        as committed that are not written yet.
    """
    chunk, slot = divmod(rows, ROWS_PER_CHUNK)
    seq = records / "seq"
    for path in seq.glob("c.*"):
        if int(path.name[2:]) > chunk:
            path.unlink()
    path = seq / chunk_key(chunk, 0)
    if path.exists():
        with path.open("r+b") as file:  # in place: rewritten, the file would be empty for a moment
            file.seek(slot * COLUMNS["seq"].itemsize)
            rest = file.read()
            if any(rest):
                file.seek(-len(rest), os.SEEK_END)
                file.write(bytes(len(rest)))
