"""Records on their way into a store, and back from the columns they are told in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anchorlib.block import RowBlock, block_of
from anchorlib.dtypes import DTYPES
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.store import Writer
from anchorlib.summary import Log2Histogram, Summary


def put(writer: Writer, records: Iterable[Record]) -> None:
    """Writes records as one block."""
    writer.write_block(block_of(list(records)))


def records_of(block: RowBlock | None, rank: int = 0) -> list[Record]:
    """What a block says, record by record; nothing where there is none."""
    if block is None:
        return []
    ends = np.cumsum(block.columns["bins"].astype(np.int64))
    return [_record(block, row, int(end), rank) for row, end in enumerate(ends)]


def _record(block: RowBlock, row: int, end: int, rank: int) -> Record:
    cell = {name: column[row].item() for name, column in block.columns.items()}
    bins = slice(end - int(cell["bins"]), end)
    histogram = Log2Histogram.from_pairs(
        block.exponents[bins],
        block.elements[bins],
        **{name: cell[name] for name in ("zero", "nan", "inf", "subnormal")},
    )
    figures = (cell[name] for name in ("min", "max", "sum", "l2"))
    dtype, shape = block.tables.layouts[cell["layout"]]
    raw = None
    if block.kept[row]:
        data = b"".join(block.buffers(np.array([row])))
        raw = np.frombuffer(data, DTYPES[dtype].storage).reshape(shape)
    where = (cell["step"], cell["pass_index"], cell["call"])
    return Record(
        *block.tables.series[cell["series"]],
        Coordinates(*where, block.tables.phases[cell["phase"]]),
        cell["order"],
        cell["time_ns"],
        dtype,
        shape,
        raw,
        Summary(block.digest[row].astype(">u8").tobytes(), *figures, histogram),
        cell["count"],
        rank,
        Flag(cell["flags"]),
        cell["scale"],
    )
