"""Where a run stores the values of a table's records, for this process and for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.tables.table import Table
from anchorlib.store import RankHandle, RankReader, packed_rows, rank_handle, unpacked_rows

__all__ = ["SendableValues", "StoredValues", "stored_values"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class StoredValues:
    """The stored values of a table's records, with open files.

    readers: a reader for each rank that is read.
    owner: for each record, the index in `readers` of the reader of its rank.
    rows: for each record, its row in that reader.
    """

    readers: Sequence[RankReader]
    owner: Array
    rows: Array

    def read(self, row: int, nbytes: int) -> Iterator[Array]:
        """Yield the raw storage of one record in blocks of at most `nbytes` bytes.

        row: the record's row in the table. The table of a run as it is stored has this method as
        its `Table.read`.
        """
        return self.readers[int(self.owner[row])].raw_blocks(int(self.rows[row]), nbytes)

    def stack(self, records: Array, size: int, storage: np.dtype[Any]) -> Array:
        """Return the raw storage of some records of one size and dtype, as (len(records), size).

        records: rows of the table. size: the elements of each record. storage: the dtype of the
        stored bits.
        """
        stacked = np.empty((len(records), size), storage)
        for number in np.unique(self.owner[records]):
            places = np.flatnonzero(self.owner[records] == number)
            part = np.empty((len(places), size), storage)
            self.readers[int(number)].flat_stack(self.rows[records[places]], part)
            stacked[places] = part
        return stacked

    def sendable(self, records: Array) -> SendableValues:
        """Return where these records' values are stored, as plain data for another process.

        Raises UnsupportedError where the run was not opened by name: no other process finds it.
        """
        numbers, owner = np.unique(self.owner[records], return_inverse=True)
        pins = tuple(rank_handle(self.readers[number]) for number in numbers.tolist())
        return SendableValues(pins, packed_rows(owner.reshape(-1)), packed_rows(self.rows[records]))


@dataclass(frozen=True, slots=True)
class SendableValues:
    """`StoredValues` without open files: plain values, from which any process can open them.

    pins: what a process needs to open each rank. owner, rows: those of `StoredValues`, packed by
        `packed_rows`.
    """

    pins: tuple[RankHandle, ...]
    owner: bytes
    rows: bytes

    def opened(self) -> StoredValues:
        """Return the values with files opened here; raises what `RankHandle.reader` raises."""
        readers = [pin.reader() for pin in self.pins]
        return StoredValues(readers, unpacked_rows(self.owner), unpacked_rows(self.rows))


def stored_values(table: Table) -> StoredValues | None:
    """Return where the values of a table are stored; None if the comparison computes some of them.

    A comparison computes the values of merged and reordered records.
    """
    made = getattr(table.read, "__self__", None)
    return made if isinstance(made, StoredValues) else None
