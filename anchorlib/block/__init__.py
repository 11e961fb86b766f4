"""Records as columns: the one form in which they enter a store.

    block_of(records) ──┐
    a drain's columns ──┼──▶ RowBlock ──▶ Writer.write_block
    a collector's frame ┘

A block has one entry a record in every column. What records have in common (whose they are, their
dtype and shape, their phase) is said once, in its `Tables`, and columns hold numbers in them.

columns    the columns, and what the numbers in them stand for
row_block  a block: cut, joined, narrowed
records    records as a block, and a block as records again
"""

from anchorlib.block.columns import (
    COLUMNS,
    Buffer,
    Layout,
    Misfit,
    Series,
    Tables,
    layout_bytes,
)
from anchorlib.block.records import block_of, payloads_of, records_of
from anchorlib.block.row_block import RowBlock, joined_blocks

__all__ = [
    "COLUMNS",
    "Buffer",
    "Layout",
    "Misfit",
    "RowBlock",
    "Series",
    "Tables",
    "block_of",
    "joined_blocks",
    "layout_bytes",
    "payloads_of",
    "records_of",
]
