"""A block of records, which is cut, joined and narrowed without copying any values."""

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

    columns: each of `COLUMNS`, one entry a record. "series", "layout" and "phase" are numbers in
        `tables`; "bins" says how many bins its histogram has; the others are `Record`'s fields.
    digest: (records, 2), big-endian halves of the xxh3-128 of the values.
    kept: whether a record has values. They lie in `payloads[source]`, from byte `starts` on, as
        many as its layout has; what stands there for a record without values is not looked at.
    exponents, elements: the bins of all histograms, one record's after the other's.
    misfits: records that found no place in the columns.
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
        """Bytes of each record's values, 0 where it has none."""
        sizes: Array = np.array(self.tables.sizes, np.int64)[self.columns["layout"]]
        return np.where(self.kept, sizes, 0)

    def buffers(self, rows: Array) -> list[Buffer]:
        """The values of these records, all of which are kept, one buffer each; nothing is copied.

        Records that share a payload and lie end to end in it come as one.
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
        """The values of all records that are kept, in order; nothing is copied."""
        return self.buffers(np.flatnonzero(self.kept))

    def cut(self, bounds: Sequence[int]) -> Iterator[RowBlock]:
        """The records between each two neighbours of `bounds`, as blocks that share memory."""
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
        """The block without the values of records where `bare` is true; their flags note that."""
        flags = self.columns["flags"].copy()
        flags[bare & self.kept] |= int(Flag.VALUE_DROPPED)
        return replace(self, columns={**self.columns, "flags": flags}, kept=self.kept & ~bare)

    @property
    def names(self) -> list[Series]:
        """The series of each record: (name, kind, mode's text)."""
        return [self.tables.series[number] for number in self.columns["series"].tolist()]

    def nothing(self) -> RowBlock:
        """A block of the same tables without any record."""
        return self.only(np.zeros(len(self), bool))

    def only(self, chosen: Array) -> RowBlock:
        """The records where `chosen` is true."""
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
        """The block without its first `rows` rows."""
        return self if rows <= 0 else self.only(np.arange(len(self)) >= rows)

    def misfit(self, row: int, reason: str) -> Misfit:
        """The record at `row` as one that cannot be stored."""
        name, kind, mode = self.tables.series[self.columns["series"][row]]
        return Misfit(name, kind, mode, int(self.columns["step"][row]), reason)


def joined_blocks(blocks: Sequence[RowBlock]) -> RowBlock:
    """One block with the records of several blocks of the same tables, in their order."""
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
