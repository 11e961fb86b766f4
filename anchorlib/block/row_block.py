"""`RowBlock`, the records of one rank as columns; it is cut and joined without copying values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from anchorlib.block.columns import COLUMNS, Array, Buffer, Misfit, Series, Tables
from anchorlib.record import Flag

__all__ = ["RowBlock", "joined_blocks"]


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Records of one rank, column by column, in the order in which they were made.

    columns: name → array, for each name in `COLUMNS`, with one entry per record. "series", "layout"
        and "phase" hold indices into `tables`; "bins" says how many bins the record's histogram
        has; the other columns are fields of `Record`, its coordinates and its summary.
    digest: shape (records, 2), the big-endian halves of the xxh3-128 hash of each record's values.
    kept: for each record, whether its values are in the block.
    payloads, source, starts: where the values are. Those of record i lie in `payloads[source[i]]`
        from byte `starts[i]` on, as many bytes as the record's layout has. For a record without
        values, `source` and `starts` mean nothing.
    exponents, elements: exponent and count of each bin of the records' histograms (log2 of the
        magnitudes), record after record.
    misfits: records that could not be written into the columns, and why.
    """

    tables: Tables
    columns: dict[str, Array]
    digest: Array
    kept: Array
    payloads: Sequence[Buffer]
    source: Array
    starts: Array
    exponents: Array
    elements: Array
    misfits: tuple[Misfit, ...] = ()

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def sizes(self) -> Array:
        """The number of bytes of each record's values; 0 for a record without values."""
        sizes: Array = np.array(self.tables.sizes, np.int64)[self.columns["layout"]]
        return np.where(self.kept, sizes, 0)

    def buffers(self, rows: Array) -> list[Buffer]:
        """Return buffers with the values of the records at indices `rows`; nothing is copied.

        All of these records must have values. Records whose values follow each other in the same
        payload share one buffer; every other record has a buffer of its own.
        """
        starts, sizes, source = self.starts[rows], self.sizes[rows], self.source[rows]
        ends = starts + sizes
        follows = (starts[1:] == ends[:-1]) & (source[1:] == source[:-1])
        first = np.concatenate([[True], ~follows]) if len(rows) else np.empty(0, bool)
        last = np.concatenate([~follows, [True]]) if len(rows) else first
        spans = zip(
            source[first].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True
        )
        return [memoryview(self.payloads[at])[start:end] for at, start, end in spans]

    def values(self) -> list[Buffer]:
        """Return buffers with the values of all records that have values, in order, uncopied."""
        return self.buffers(np.flatnonzero(self.kept))

    def cut(self, bounds: Sequence[int]) -> Iterator[RowBlock]:
        """Yield a block of the records from each index in `bounds` up to the next index, exclusive.

        bounds: indices of records, ascending. Records before the first index, and from the last
            index on, are in no block.

        The blocks share the memory of this block, and have no misfits.
        """
        bins = np.concatenate([[0], np.cumsum(self.columns["bins"])]).astype(np.int64)
        for first, last in pairwise(bounds):
            rows, pairs = slice(first, last), slice(int(bins[first]), int(bins[last]))
            yield replace(
                self,
                columns={name: column[rows] for name, column in self.columns.items()},
                digest=self.digest[rows],
                kept=self.kept[rows],
                source=self.source[rows],
                starts=self.starts[rows],
                exponents=self.exponents[pairs],
                elements=self.elements[pairs],
                misfits=(),
            )

    def without_values(self, bare: Array) -> RowBlock:
        """Return a block of all records, without the values of the records where `bare` is true.

        bare: an array with one bool for each record of the block.
        In the returned block, the flag VALUE_DROPPED is set on those records that had values here.
        """
        flags = self.columns["flags"].copy()
        flags[bare & self.kept] |= int(Flag.VALUE_DROPPED)
        return replace(self, columns={**self.columns, "flags": flags}, kept=self.kept & ~bare)

    @property
    def names(self) -> list[Series]:
        """The series of each record: (name, kind, text of the mode)."""
        return [self.tables.series[number] for number in self.columns["series"].tolist()]

    def nothing(self) -> RowBlock:
        """Return a block with the tables and misfits of this block, and without any record."""
        return self.only(np.zeros(len(self), bool))

    def only(self, chosen: Array) -> RowBlock:
        """Return a block of the records for which `chosen` is true.

        The returned block has all misfits of this block.
        chosen: an array with one bool for each record of the block.
        """
        bins = np.repeat(chosen, self.columns["bins"].astype(np.int64))
        return replace(
            self,
            columns={name: column[chosen] for name, column in self.columns.items()},
            digest=self.digest[chosen],
            kept=self.kept[chosen],
            source=self.source[chosen],
            starts=self.starts[chosen],
            exponents=self.exponents[bins],
            elements=self.elements[bins],
        )

    def after(self, rows: int) -> RowBlock:
        """Return this block without its first `rows` records; the block itself for `rows` <= 0."""
        return self if rows <= 0 else self.only(np.arange(len(self)) >= rows)

    def misfit(self, row: int, reason: str) -> Misfit:
        """Return a `Misfit` for the record at index `row`; the block is not changed.

        reason: why the record cannot be stored.
        """
        name, kind, mode = self.tables.series[self.columns["series"][row]]
        return Misfit(name, kind, mode, int(self.columns["step"][row]), reason)


def joined_blocks(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return one block of all records and misfits of `blocks`, in order; values are not copied.

    blocks: at least one; their tables must be the same lists, which may have grown meanwhile: the
        last block's tables are used.
    """
    if len(blocks) == 1:
        return blocks[0]
    offsets = np.cumsum([0, *(len(block.payloads) for block in blocks[:-1])]).tolist()
    pairs = list(zip(blocks, offsets, strict=True))
    return RowBlock(
        blocks[-1].tables,
        {name: np.concatenate([one.columns[name] for one in blocks]) for name in COLUMNS},
        np.concatenate([one.digest for one in blocks]),
        np.concatenate([one.kept for one in blocks]),
        list(chain.from_iterable(one.payloads for one in blocks)),
        np.concatenate([one.source + at for one, at in pairs]),
        np.concatenate([one.starts for one in blocks]),
        np.concatenate([one.exponents for one in blocks]),
        np.concatenate([one.elements for one in blocks]),
        tuple(chain.from_iterable(one.misfits for one in blocks)),
    )
