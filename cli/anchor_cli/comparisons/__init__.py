"""The outputs of `anchor compare`: a report for a terminal, files for CI, rows of records."""

from anchor_cli.comparisons.compared import report
from anchor_cli.comparisons.github import annotated, guarded, summarise
from anchor_cli.comparisons.junit import write_junit
from anchor_cli.comparisons.onward import next_commands
from anchor_cli.comparisons.paired import write_csv, write_jsonl
from anchor_cli.comparisons.renamed import read_names

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
