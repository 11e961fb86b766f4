"""CSV whose cells a spreadsheet shows and never runs as formulas.

A spreadsheet reads a cell that begins with = + - @, or with a tab or a line end, as a formula, and
a formula can start programs. Names, phases and modes of a run may be any text, so such a text gets
an apostrophe in front, with which spreadsheets mark text. Numbers stay as they are. A text that
already begins with apostrophes before such a character gets one more. To restore the texts,
remove one apostrophe from each cell that begins with apostrophes and then such a character.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import IO, Any, Final

__all__ = ["harmless", "sheet", "write_rows"]

_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")


def write_rows(file: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV, with cells that no spreadsheet reads as a formula."""
    sheet(file).writerows([harmless(cell) for cell in row] for row in rows)


def sheet(file: IO[str]) -> Any:
    """Returns a `csv.writer` that ends each row in a line feed.

    The writer does not guard against formulas: the caller has to pass each text through `harmless`.
    """
    return csv.writer(_Lines(file), lineterminator="\r\n")


class _Lines:
    """A file wrapper that replaces the line end of each row, CR LF, by LF.

    The csv module is told to end rows in CR LF because it quotes a cell only if the cell has a
    character of the row's end. With LF alone, a CR in a name would not be quoted, and a spreadsheet
    would begin a new row there, with a first cell that was not made harmless.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        """Writes a row, which `csv.writer` passes with CR LF at its end, with LF instead."""
        return self._file.write(f"{row[:-2]}\n")


def harmless(cell: Any) -> Any:
    """Returns the cell, with an apostrophe in front if a spreadsheet would run it as a formula.

    That concerns texts alone, and no text that is a number.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
