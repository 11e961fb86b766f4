"""Tables for other tools: HTML tables for notebooks, and pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape as literal
from typing import TYPE_CHECKING, Any

from anchorlib.errors import MissingExtraError
from anchorlib.names import escape

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_frame", "html_table", "html_text"]


def html_text(text: object) -> str:
    """Return `text` escaped for HTML; control characters are spelled out, markup shows as text."""
    return literal(escape(str(text)))


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML `<table>` with a heading row and a row for each of `rows`.

    Markup in heads and cells is escaped, and so shows as text.
    """
    lines = ["<table>", f"<thead><tr>{_cells('th', heads)}</tr></thead>", "<tbody>"]
    lines += [f"<tr>{_cells('td', row)}</tr>" for row in rows]
    return "\n".join([*lines, "</tbody>", "</table>"])


def _cells(tag: str, texts: Iterable[object]) -> str:
    return "".join(f"<{tag}>{html_text(text)}</{tag}>" for text in texts)


def as_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a pandas DataFrame of these columns.

    Raises MissingExtraError where pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise MissingExtraError(
            "to_pandas needs pandas: pip install 'anchorlib[pandas]'"
        ) from error
    return DataFrame(dict(columns))
