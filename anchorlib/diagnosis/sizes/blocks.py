"""Blocks of pairs that are measured together, and the function that measures a block.

A block says where the values of its pairs are. The answer depends on the block alone, so that any
process computes equal bits for it. A block is one large pair, or small pairs of 64 Ki elements in
all: which elements are added up in which order is settled by the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import SendableValues, StoredValues, Table, stored_values
from anchorlib.diagnosis.sizes.differences import Differences
from anchorlib.diagnosis.sizes.digest_checks import DigestChecks
from anchorlib.diagnosis.sizes.values import BLOCK, READ, regrouped
from anchorlib.dtypes import DType
from anchorlib.errors import StoreError, UnsupportedError
from anchorlib.store import RankHandle

__all__ = [
    "BlockMeasurements",
    "BlockSide",
    "PairBlock",
    "SendableBlockSide",
    "SendablePairBlock",
    "measure_block",
    "side_of",
]

Array = np.ndarray[Any, Any]
OPEN_BYTES = 1 << 14  # bytes to which opening a block compares, however little it reads


@dataclass(frozen=True, slots=True)
class SendableBlockSide:
    """A `BlockSide` without open files: plain values that can be sent to another process."""

    values: SendableValues
    dtype: str
    size: int
    digests: Array

    def opened(self) -> BlockSide:
        """Return the `BlockSide` with files opened here; raises what `RankHandle.reader` raises."""
        values = self.values.opened()
        storage = dtypes.dtype(self.dtype).storage
        return BlockSide(
            *(self.dtype, self.size, self.digests, np.arange(len(self.digests))),
            read=values.read,
            stack=partial(values.stack, size=self.size, storage=storage),
            values=values,
        )


@dataclass(frozen=True, slots=True)
class BlockSide:
    """The records of one run in a block, all of one dtype and size.

    dtype, size: the dtype's name, and the elements of each record.
    digests: the recorded digests, as in `Table.digest`.
    rows: the numbers by which `read` and `stack` (those of `Table`) know the records.
    values: where the run stores the values; None where the comparison computed some of them.
    """

    dtype: str
    size: int
    digests: Array
    rows: Array
    read: Callable[[int, int], Iterator[Array]]
    stack: Callable[[Array], Array] | None
    values: StoredValues | None

    @property
    def kind(self) -> DType:
        """The dtype that all records of this side have."""
        return dtypes.dtype(self.dtype)

    def only(self, at: int) -> BlockSide:
        """Return this side of the block with only the record at index `at`."""
        return replace(self, digests=self.digests[at : at + 1], rows=self.rows[at : at + 1])

    def raws(self) -> Iterator[Array]:
        """Yield raw storage, (records, elements): small records whole, a large one in parts."""
        if self.size > BLOCK:
            reads = self.read(int(self.rows[0]), READ * self.kind.storage.itemsize)
            yield from (part[None] for part in regrouped(reads))
        elif self.size:
            yield self._all()

    def _all(self) -> Array:
        if self.stack is not None and len(self.rows) > 1:
            return self.stack(self.rows)
        return np.stack([np.concatenate(list(self.read(n, READ << 4))) for n in self.rows.tolist()])

    def sendable(self) -> SendableBlockSide:
        """Return this side of the block in a form that can be sent to another process.

        Raises UnsupportedError for values that the comparison computed: no other process has them.
        """
        if self.values is None:
            raise UnsupportedError("values that comparing made are in this process alone")
        return SendableBlockSide(
            self.values.sendable(self.rows), self.dtype, self.size, self.digests
        )


def side_of(table: Table, rows: Array, kind: DType, size: int) -> BlockSide:
    """Return some records of a table, all of one dtype and size, as a side of a block."""
    records = kind.name, size, table.digest[rows], rows
    return BlockSide(*records, read=table.read, stack=table.stack, values=stored_values(table))


@dataclass(frozen=True, slots=True)
class SendablePairBlock:
    """A `PairBlock` without open files: plain values that can be sent to another process."""

    places: Array
    a: SendableBlockSide
    b: SendableBlockSide
    shift: Array
    eps: Array
    scale: Array

    @property
    def pins(self) -> tuple[RankHandle, ...]:
        """What a process needs to open the ranks that the block reads."""
        return (*self.a.values.pins, *self.b.values.pins)

    def opened(self) -> PairBlock:
        """Return the `PairBlock` with files opened here; raises what `RankHandle.reader` raises."""
        rest = self.shift, self.eps, self.scale
        return PairBlock(self.places, self.a.opened(), self.b.opened(), *rest)


@dataclass(frozen=True, slots=True)
class PairBlock:
    """Pairs of records that are measured together: all of one size and one pair of dtypes.

    places: the numbers by which the maker of the block knows the pairs.
    a, b: the records of A and of B, in the order of `places`.
    shift, eps, scale: an entry for each pair: the exponent of the power of two by which values are
        scaled, the unit of errors, and the factor for B's values (see `Differences`).
    """

    places: Array
    a: BlockSide
    b: BlockSide
    shift: Array
    eps: Array
    scale: Array

    @property
    def weight(self) -> int:
        """About how much work the block is, in bytes that are read."""
        widths = sum(side.kind.storage.itemsize for side in (self.a, self.b))
        return len(self.places) * self.a.size * widths + OPEN_BYTES

    def sendable(self) -> SendablePairBlock:
        """Return the block in a form that can be sent to another process.

        Raises UnsupportedError where the comparison computed values of either run, as of merged
        ranks, since no other process has these, and where a run was not opened by name.
        """
        rest = self.shift, self.eps, self.scale
        return SendablePairBlock(self.places, self.a.sendable(), self.b.sendable(), *rest)

    def only(self, at: int) -> PairBlock:
        """Return the block with only the pair at index `at`."""
        place = slice(at, at + 1)
        rest = self.shift[place], self.eps[place], self.scale[place]
        return PairBlock(self.places[place], self.a.only(at), self.b.only(at), *rest)


class BlockMeasurements(NamedTuple):
    """How far the pairs of one block are apart, and which of them are damaged.

    places: the numbers of all pairs of the block.
    measured: a tuple for each part of the block: the numbers of its pairs, and the fields of
    Measure that come from their values (name -> an entry for each pair).
    damaged: a tuple for each sort of damage: the numbers of the pairs, the side ("a" or "b") whose
    values are damaged, and why.
    """

    places: Array
    measured: list[tuple[Array, dict[str, Array]]]
    damaged: list[tuple[Array, str, str]]


def measure_block(block: PairBlock) -> BlockMeasurements:
    """Return how far the pairs of a block are apart, measured from their values.

    Pairs with values that do not have their digest are in `measured` and in `damaged`. Where the
    values of a record cannot be read, each pair is measured by itself, so that only the pair of
    that record is left out, and listed as damaged.
    """
    seals = DigestChecks(block.a.digests), DigestChecks(block.b.digests)
    try:
        with np.errstate(all="ignore"):
            columns = _differences(block, seals)
    except StoreError as error:
        if len(block.places) == 1:
            return BlockMeasurements(
                block.places, [], [(block.places, _unreadable(block), str(error))]
            )
        each = [measure_block(block.only(at)) for at in range(len(block.places))]
        figures = [one for part in each for one in part.measured]
        return BlockMeasurements(
            block.places, figures, [damage for part in each for damage in part.damaged]
        )
    damaged = [
        (block.places[seal.broken], side, "they do not fit their digest")
        for side, seal in zip("ab", seals, strict=True)
        if seal.broken
    ]
    return BlockMeasurements(block.places, [(block.places, columns)], damaged)


def _differences(block: PairBlock, seals: tuple[DigestChecks, DigestChecks]) -> dict[str, Array]:
    differences = Differences(block.a.kind, block.b.kind, block.shift, block.eps, block.scale)
    for raws in zip(block.a.raws(), block.b.raws(), strict=True):
        for seal, raw in zip(seals, raws, strict=True):
            seal.add(raw)
        differences.add(*raws)
    return differences.columns()


def _unreadable(block: PairBlock) -> str:
    """Return the side, "a" or "b", whose record cannot be read in a block of one pair."""
    try:
        for _ in block.a.raws():
            pass
    except StoreError:
        return "a"
    return "b"
