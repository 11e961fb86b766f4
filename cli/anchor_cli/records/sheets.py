"""CSV that a spreadsheet shows and never runs.

A spreadsheet takes a cell that begins with = + - @, or with a tab or a line end, for a formula, and
a formula can start programs. Names, phases and modes of a run may be anything, so such a text gets
an apostrophe in front, as spreadsheets mark text. Numbers stay as they are. Whoever takes one
apostrophe from the front of each text that has a formula behind its apostrophes has the text back.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import IO, Any, Final

__all__ = ["harmless", "sheet", "write_rows"]

_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")


def write_rows(file: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows of cells as CSV, each of which is made harmless."""
    sheet(file).writerows([harmless(cell) for cell in row] for row in rows)


def sheet(file: IO[str]) -> Any:
    """A csv.writer whose lines end in a line feed, for cells that are harmless already."""
    return csv.writer(_Lines(file), lineterminator="\r\n")


class _Lines:
    """Ends each row in a line feed alone.

    csv puts quotes around the characters of its own line end only: a carriage return in a name
    would otherwise begin a row, and what follows it a cell that nobody has looked at.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        """Takes one row with its end, as csv's writer gives it."""
        return self._file.write(f"{row[:-2]}\n")


def harmless(cell: Any) -> Any:
    """The cell; a text that would be run, with an apostrophe in front."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
