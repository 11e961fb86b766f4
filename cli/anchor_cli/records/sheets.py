"""CSV whose cells a spreadsheet shows and never runs as formulas.

A spreadsheet reads a cell that begins with = + - @, or with a tab or a line end, as a formula, and
a formula can start programs. Names, phases and modes of a run may be any text, so such a text gets
an apostrophe in front, with which spreadsheets mark text. Numbers stay as they are. To restore the
texts, remove one apostrophe from each text that is a formula behind its apostrophes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import IO, Any, Final

__all__ = ["harmless", "sheet", "write_rows"]

_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")


def write_rows(file: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV; each cell is made harmless."""
    sheet(file).writerows([harmless(cell) for cell in row] for row in rows)


def sheet(file: IO[str]) -> Any:
    """A csv.writer that ends each row in a line feed.

    It does not guard against formulas: pass each text through `harmless` first.
    """
    return csv.writer(_Lines(file), lineterminator="\r\n")


class _Lines:
    """A file that ends each row in a line feed, while csv ends rows in carriage return and feed.

    csv quotes a cell only if it holds a character of csv's own line end. With a line feed as that
    end, a carriage return in a name would begin a row, whose first cell was not made harmless.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        """Writes one row, which csv's writer gives with its line end."""
        return self._file.write(f"{row[:-2]}\n")


def harmless(cell: Any) -> Any:
    """The cell; a text that a spreadsheet would run gets an apostrophe in front."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
