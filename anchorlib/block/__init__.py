"""Records as columns: the only way in which records enter a store.

    block_of(records) ──┐
    a drain's columns ──┼──▶ RowBlock ──▶ Writer.write_block
    a collector's frame ┘

A drain is the thread or process that takes records out of a training's queue; a frame is a message
of records that a collector was sent.

A block has one entry per record in every column. What many records have in common (name, kind and
mode; dtype and shape; phase) is stored once, in the block's `Tables`, and columns hold indices
into these tables.

columns    the columns, and the tables that the indices in them refer to
row_block  the class of a block, which can be cut, joined and filtered
records    makes a block of `Record` objects, and `Record` objects of a block
"""

from anchorlib.block.columns import (
    COLUMNS,
    Buffer,
    DtypeAndShape,
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
    "DtypeAndShape",
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
