"""The outputs of `anchor compare`: a report for a terminal, files for CI, tables of records."""

from anchor_cli.comparisons.github import annotated, guarded, summarise
from anchor_cli.comparisons.junit import write_junit
from anchor_cli.comparisons.name_map import read_names
from anchor_cli.comparisons.pair_rows import write_csv, write_jsonl
from anchor_cli.comparisons.suggested_commands import next_commands
from anchor_cli.comparisons.terminal_report import report

__all__ = [
    "annotated",
    "guarded",
    "next_commands",
    "read_names",
    "report",
    "summarise",
    "write_csv",
    "write_jsonl",
    "write_junit",
]
