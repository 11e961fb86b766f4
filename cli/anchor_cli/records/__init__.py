"""The records that a command selects, the gaps among them, and the file formats they go to.

A gap is a number of observations that could not be recorded.
"""

from anchor_cli.records.extract import Extract
from anchor_cli.records.following import Following
from anchor_cli.records.formats import WRITERS, csv_rows
from anchor_cli.records.missing import Gaps, answered, clauses_of, lost
from anchor_cli.records.selected import named, narrowed, selected, settled
from anchor_cli.records.sheets import harmless, sheet, write_rows
from anchor_cli.records.summarised import summaries, summarised
from anchor_cli.records.tensor_records import SelectedRecords

__all__ = [
    "WRITERS",
    "Extract",
    "Following",
    "Gaps",
    "SelectedRecords",
    "answered",
    "clauses_of",
    "csv_rows",
    "harmless",
    "lost",
    "named",
    "narrowed",
    "selected",
    "settled",
    "sheet",
    "summaries",
    "summarised",
    "write_rows",
]
