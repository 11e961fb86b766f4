"""Reads back the arrays of one rank: rows and values with their checksums, the operations log."""

from anchorlib.store.stored.hidden_attempts import visible_rows
from anchorlib.store.stored.operations import LOG, operation_entries
from anchorlib.store.stored.rank_records import RankRecords
from anchorlib.store.stored.rank_rows import is_whole
from anchorlib.store.stored.row_checks import RowChecks
from anchorlib.store.stored.rows import StoredRows, committed_rows
from anchorlib.store.stored.value_checks import UNFIT, damage, removed_meanwhile, unfit
from anchorlib.store.stored.values import StoredForm

__all__ = [
    "LOG",
    "UNFIT",
    "RankRecords",
    "RowChecks",
    "StoredForm",
    "StoredRows",
    "committed_rows",
    "damage",
    "is_whole",
    "operation_entries",
    "removed_meanwhile",
    "unfit",
    "visible_rows",
]
