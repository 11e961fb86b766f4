"""The writer of a rank: turns blocks of records into table rows, stored values, catalogue lines."""

from anchorlib.store.write.forms import OpenForm
from anchorlib.store.write.open_files import ChunkFiles
from anchorlib.store.write.publishing import catalogue_json, rank_json, tell_series
from anchorlib.store.write.rank_opening import store_errors
from anchorlib.store.write.register import check_series
from anchorlib.store.write.slots import write_all
from anchorlib.store.write.table import column_shape
from anchorlib.store.write.writer import Writer

__all__ = [
    "ChunkFiles",
    "OpenForm",
    "Writer",
    "catalogue_json",
    "check_series",
    "column_shape",
    "rank_json",
    "store_errors",
    "tell_series",
    "write_all",
]
