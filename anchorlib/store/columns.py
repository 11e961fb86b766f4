"""Many small records as columns, on their way into the table: what `packing` does record by record.

Both put down the same bytes. What needs a look at each record (no room for all, tensors of many
shapes) is left to `packing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib.record import Coordinates, Record
from anchorlib.store.checks import row_check
from anchorlib.store.layout import NOT_KEPT, ROW
from anchorlib.store.packing import PAIR_BYTES, Packer
from anchorlib.store.series import SeriesShelf
from anchorlib.store.variants import PlainVariant

if TYPE_CHECKING:
    from anchorlib.wire import RowBlock

__all__ = ["PackedBlock", "pack_block"]

Array = np.ndarray[Any, Any]
_SAME = ("step", "pass_index", "call", "time_ns", "count", "scale")
_FIGURES = ("zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2")
_MOST_ORDER = (1 << 63) - 1
_NO_VALUES = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """What one write of a block puts down.

    values: of each array that gains rows: how many, and their bytes.
    """

    rows: bytes
    checks: list[int]
    exponents: bytes
    counts: bytes
    pairs: int
    values: list[tuple[PlainVariant, int, bytes]]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a block, in order, that go into one variant, with or without their values."""

    variant: PlainVariant
    rows: Array
    kept: bool


def pack_block(
    block: RowBlock, shelf: SeriesShelf, packer: Packer, pairs: int
) -> PackedBlock | None:
    """Packs `block`, whose histograms go behind `pairs`; None where its rows need a look each."""
    if int(block.columns["order"].max()) > _MOST_ORDER - packer.order_base:
        return None
    groups = _groups(block, shelf)
    holding = {group.variant for group in groups or () if group.kept}
    if groups is None or len(holding) < sum(group.kept for group in groups):
        return None
    table = np.empty(len(block), ROW)
    seeds: Array = np.empty(len(block), np.uint64)
    for group in groups:
        table["variant"][group.rows] = group.variant.number
        seeds[group.rows] = group.variant.identity
        first = group.variant.rows
        table["row"][group.rows] = np.arange(first, first + len(group.rows)) if group.kept else -1
    for name in (*_SAME, *_FIGURES):
        table[name] = block.columns[name]
    table["attempt"] = packer.attempt
    table["order"] = packer.order_base + block.columns["order"]
    table["flags"] = block.columns["flags"] | np.where(block.kept, 0, NOT_KEPT).astype(np.uint64)
    table["digest_high"], table["digest_low"] = block.digest.T
    table["phase"] = _phases(block, packer)
    ends, mask = _histograms(block, table, pairs)
    exponents, counts = block.exponents[mask].tobytes(), block.elements[mask].tobytes()
    rows = table.tobytes()
    checks = list(_checks(rows, exponents, counts, ends, seeds))
    return PackedBlock(rows, checks, exponents, counts, int(ends[-1]), list(_values(block, groups)))


def _groups(block: RowBlock, shelf: SeriesShelf) -> list[Group] | None:
    """The rows by variant; None where one is shared by many shapes."""
    columns = block.columns
    codes = (columns["series"] << 22) | (columns["layout"] << 1) | block.kept
    order = np.argsort(codes, kind="stable")
    cuts = np.flatnonzero(np.diff(codes[order])) + 1
    # By first appearance: series are begun in the order in which they come.
    parts = sorted(np.split(order, cuts), key=lambda part: int(part[0]))
    groups = []
    for part in parts:
        variant = shelf.find(_example(block, int(part[0])))
        if not isinstance(variant, PlainVariant):
            return None
        groups.append(Group(variant, part, bool(block.kept[part[0]])))
    return groups


def _example(block: RowBlock, row: int) -> Record:
    """A record of the same series, dtype and shape."""
    name, kind, mode = block.tables.series[block.columns["series"][row]]
    dtype, shape = block.tables.layouts[block.columns["layout"][row]]
    raw = _NO_VALUES if block.kept[row] else None
    return Record(name, kind, mode, Coordinates(0), 0, 0, dtype, shape, raw)


def _phases(block: RowBlock, packer: Packer) -> Array:
    """The store's number of each row's phase, in the order of first appearance."""
    codes, first, places = np.unique(block.columns["phase"], return_index=True, return_inverse=True)
    numbers = np.empty(len(codes), np.uint32)
    for at in np.argsort(first).tolist():
        numbers[at] = packer.phase(block.tables.phases[codes[at]])
    found: Array = numbers[places]
    return found


def _histograms(block: RowBlock, table: Array, pairs: int) -> tuple[Array, Array]:
    """Says in `table` where histograms go: those that are smaller than the values.

    Returns where each row's pairs end among those that are stored, and which pairs these are.
    """
    sizes, bins = block.sizes, block.columns["bins"].astype(np.int64)
    stored = (sizes == 0) | (PAIR_BYTES * bins < sizes)
    lengths = np.where(stored, bins, 0)
    ends = np.cumsum(lengths)
    table["hist_length"] = np.where(stored, lengths, -1)
    table["hist_offset"] = np.where(stored, pairs + ends - lengths, 0)
    return ends, np.repeat(stored, bins)


def _checks(
    rows: bytes, exponents: bytes, counts: bytes, ends: Array, seeds: Array
) -> Iterator[int]:
    width, start = ROW.itemsize, 0
    for row, (end, seed) in enumerate(zip(ends.tolist(), seeds.tolist(), strict=True)):
        told = rows[row * width : (row + 1) * width]
        yield row_check(told + exponents[2 * start : 2 * end] + counts[8 * start : 8 * end], seed)
        start = end


def _values(block: RowBlock, groups: list[Group]) -> Iterator[tuple[PlainVariant, int, bytes]]:
    sizes, payload = block.tables.sizes, block.payload
    for group in groups:
        if not group.kept:
            continue
        size = sizes[block.columns["layout"][group.rows[0]]]
        parts = [payload[start : start + size] for start in block.starts[group.rows].tolist()]
        yield group.variant, len(parts), b"".join(parts)
