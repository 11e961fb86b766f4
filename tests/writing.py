"""Records on their way into a store, and back from the columns they are told in."""

from __future__ import annotations

from collections.abc import Iterable

from anchorlib import block as columns
from anchorlib.block import RowBlock, block_of
from anchorlib.record import Record
from anchorlib.store import Writer


def put(writer: Writer, records: Iterable[Record]) -> None:
    """Writes records as one block."""
    writer.write_block(block_of(list(records)))


def records_of(block: RowBlock | None, rank: int = 0) -> list[Record]:
    """What a block says, record by record; nothing where there is none."""
    return [] if block is None else columns.records_of(block, rank)
