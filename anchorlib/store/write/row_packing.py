"""Packs a block of records into table rows and values of forms, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from anchorlib.block import RowBlock
from anchorlib.errors import StoreError
from anchorlib.record import Flag
from anchorlib.store.format import NOT_KEPT, ROW, flat_seed, row_check
from anchorlib.store.write.forms import Addition, OpenForm
from anchorlib.store.write.register import REFUSED, Register

__all__ = ["Packed", "Packer", "without_values"]

Array = np.ndarray[Any, Any]
PAIR_BYTES: Final = 10  # of one histogram bin on disk
_SAME: Final = (
    "step", "pass_index", "call", "time_ns", "count", "scale",
    "zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2",
)  # fmt: skip
_MOST_ORDER: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Packed:
    """One block ready to be written: packed rows, their checksums, histogram pairs, values.

    rows: the packed rows, end to end. checks: the checksum of each row. exponents, counts: the
    stored histogram pairs as bytes. pairs: how many pairs there are. additions: the values, an
    Addition for each form (dtype and shape) that gets some.
    """

    rows: bytes
    checks: list[int]
    exponents: bytes
    counts: bytes
    pairs: int
    additions: list[Addition]


class Packer:
    """Packs the blocks of one attempt of a writer at a rank.

    attempt, order_base: the number of the attempt, and what is added to the `order` of its records.
    """

    def __init__(self, register: Register) -> None:
        self._register = register
        self.attempt = 0
        self.order_base = 0

    def admit(self, block: RowBlock) -> RowBlock:
        """Return the block without the rows that cannot be stored.

        A row cannot be stored where its name, kind, mode, phase, dtype or shape is invalid. The
        result's `misfits` are those of `block`, and one more, with the reason, for each row that
        was taken out. Raises StoreError where the order of a record is beyond the table's 64 bits.
        """
        if len(block) and int(block.columns["order"].max()) > _MOST_ORDER - self.order_base:
            raise StoreError("a record's order is out of range")
        refused = self._refused(block)
        if not refused:
            return block
        fit = np.ones(len(block), bool)
        fit[list(refused)] = False
        misfits = tuple(block.misfit(row, reason) for row, reason in refused.items())
        return replace(block.only(fit), misfits=block.misfits + misfits)

    def _refused(self, block: RowBlock) -> dict[int, str]:
        """Return, for each row that cannot be stored, the reason, by row number in the block.

        It is the reason why the row's series, phase or layout (dtype and shape) is refused.
        """
        register, tables, columns = self._register, block.tables, block.columns
        series, phases = register.series_and_phases(block)
        layouts = register.sound_layouts(tables, columns["layout"])
        refused: dict[int, str] = {}
        for name, entries, bad in (
            ("series", tables.series, series == REFUSED),
            ("phase", tables.phases, phases == REFUSED),
            ("layout", tables.layouts, ~layouts),
        ):
            for row in np.flatnonzero(bad).tolist():
                refused.setdefault(row, register.refusals[entries[columns[name][row]]])
        return refused

    def pack(self, block: RowBlock, pairs: int) -> Packed:
        """Pack a block from `admit`; `pairs` is how many histogram pairs the table has so far."""
        register, columns = self._register, block.columns
        series, phases = register.series_and_phases(block)
        forms = register.forms_of(block)
        table = np.empty(len(block), ROW)
        for name in _SAME:
            table[name] = columns[name]
        table["series"], table["phase"], table["form"] = series, phases, forms
        table["attempt"] = self.attempt
        table["order"] = self.order_base + columns["order"]
        table["flags"] = columns["flags"] | np.where(block.kept, 0, NOT_KEPT).astype(np.uint32)
        table["digest_high"], table["digest_low"] = block.digest.T
        seeds = register.seeds(series, forms)
        additions = [
            _addition(register.forms[int(forms[own[0]])], own, block, table, seeds)
            for own in _grouped(forms)
        ]
        ends, mask = _histograms(block, table, pairs)
        exponents, counts = block.exponents[mask].tobytes(), block.elements[mask].tobytes()
        rows = table.tobytes()
        checks = list(_checks(rows, exponents, counts, ends, seeds))
        return Packed(rows, checks, exponents, counts, int(ends[-1]), additions)


def without_values(block: RowBlock, left_out: Array) -> RowBlock:
    """Return the block without the values of rows in the bool mask `left_out`; summaries stay.

    These rows are flagged VALUE_DROPPED.
    """
    flags = block.columns["flags"] | np.where(left_out, Flag.VALUE_DROPPED, 0).astype(np.uint32)
    columns = {**block.columns, "flags": flags}
    return replace(block, columns=columns, kept=block.kept & ~left_out)


def _grouped(forms: Array) -> list[Array]:
    """Return, for each form (dtype and shape) that occurs, the numbers of its rows in order.

    forms: the form number of each row; there is at least one row.
    """
    if (forms == forms[0]).all():
        return [np.arange(len(forms))]
    order = np.argsort(forms, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(forms[order])) + 1)


def _addition(form: OpenForm, own: Array, block: RowBlock, table: Array, seeds: Array) -> Addition:
    """Return what the rows `own` add to the arrays of their form (dtype and shape).

    Each row's index in these arrays is entered into `table`. For a row of a flat form (records of
    many shapes), `seeds` is changed as well: the record's offset and shape are mixed in, because
    the checksum covers them.
    """
    kept = block.kept[own]
    holding = own[kept]
    values = block.buffers(holding) if len(holding) else []
    if not form.entry.flat:
        table["row"][own] = -1
        table["row"][holding] = np.arange(form.rows, form.rows + len(holding))
        return Addition(form, values, len(holding))
    table["row"][own] = np.arange(form.rows, form.rows + len(own))
    counts = block.sizes[own] // form.nbytes
    starts = np.where(kept, form.elements + np.cumsum(counts) - counts, -1)
    shapes = np.full((len(own), form.entry.ndim), -1)
    layouts = block.columns["layout"][own].tolist()
    for at, layout in enumerate(layouts):
        shape = block.tables.layouts[layout][1]
        shapes[at, : len(shape)] = shape
    places = zip(seeds[own].tolist(), starts.tolist(), shapes.tolist(), strict=True)
    seeds[own] = [flat_seed(*place) for place in places]
    return Addition(form, values, len(own), int(counts.sum()), starts, shapes)


def _histograms(block: RowBlock, table: Array, pairs: int) -> tuple[Array, Array]:
    """Enter into `table` where each row's histogram is stored, or that it is not stored.

    A histogram is not stored where it takes at least as much room as the row's stored values, from
    which readers can count it. A row without stored values always has its histogram stored.
    pairs: how many (exponent, count) pairs were stored before.
    Return (where each row's pairs end among the stored pairs of this block, a mask of the block's
    pairs that are stored).
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
    """Yield, for each row, one checksum of the packed row and its histogram pairs.

    rows: the packed rows, end to end. exponents, counts: all histogram pairs, 2 and 8 bytes each.
        ends: where each row's pairs end among them. seeds: the checksum seed of each row.
    """
    width, start = ROW.itemsize, 0
    for row, (end, seed) in enumerate(zip(ends.tolist(), seeds.tolist(), strict=True)):
        packed_row = rows[row * width : (row + 1) * width]
        yield row_check(
            packed_row + exponents[2 * start : 2 * end] + counts[8 * start : 8 * end], seed
        )
        start = end
