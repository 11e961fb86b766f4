"""Output to a terminal: tables, trees and sentences that fit its width."""

from anchor_cli.terminal.height import MORE, ReportPart, fitted, listed, titled, wrapped
from anchor_cli.terminal.name_tree import lines
from anchor_cli.terminal.screen import (
    Screen,
    age,
    document,
    emit,
    moment,
    note,
    plain,
    size,
    this_screen,
)
from anchor_cli.terminal.table import Column, cut, cut_name, width_of, written
from anchor_cli.terminal.words import shown_shape, spans_of, steps_of
from anchorlib.amounts import counted, figure

__all__ = [
    "MORE",
    "Column",
    "ReportPart",
    "Screen",
    "age",
    "counted",
    "cut",
    "cut_name",
    "document",
    "emit",
    "figure",
    "fitted",
    "lines",
    "listed",
    "moment",
    "note",
    "plain",
    "shown_shape",
    "size",
    "spans_of",
    "steps_of",
    "this_screen",
    "titled",
    "width_of",
    "wrapped",
    "written",
]
