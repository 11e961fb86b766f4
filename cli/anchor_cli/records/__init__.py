"""The records that a command is asked about, what of them is missing, and how they are written."""

from anchor_cli.records.extract import Extract
from anchor_cli.records.following import Following
from anchor_cli.records.formats import WRITERS, csv_rows
from anchor_cli.records.missing import Gaps, answered, lost, told
from anchor_cli.records.selected import Selected, named, narrowed, selected, settled
from anchor_cli.records.sheets import harmless, sheet, write_rows
from anchor_cli.records.summarised import summaries, summarised
from anchor_cli.records.traced import (
    ModuleOption,
    StageOption,
    StepOption,
    chosen_steps,
    tell_gaps,
    traced_ops,
)

__all__ = [
    "WRITERS",
    "Extract",
    "Following",
    "Gaps",
    "ModuleOption",
    "Selected",
    "StageOption",
    "StepOption",
    "answered",
    "chosen_steps",
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
    "tell_gaps",
    "told",
    "traced_ops",
    "write_rows",
]
