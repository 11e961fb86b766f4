"""Aligned text: columns two spaces apart, cut in the middle or left out where a terminal ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchor_cli.terminal import Screen

__all__ = ["Column", "cut", "width_of", "written"]

_GAP = "  "
_READABLE = 20  # columns that a cut text keeps as long as others can be left out instead
_SHORTEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    right: align right, as numbers are.
    cut: its texts may be cut in the middle where the terminal is narrow.
    spare: may be left out where that is not enough, the last spare column first.
    """

    title: str
    right: bool = False
    cut: bool = False
    spare: bool = False


def written(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], screen: Screen
) -> Iterator[str]:
    """The lines of a table, head first, none wider than the screen if columns can give way."""
    widths = [
        max([width_of(column.title), *(width_of(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    if screen.width is not None:
        _shrink(columns, widths, kept, screen.width, _READABLE)
        kept = _leave_out(columns, widths, screen.width)
        _shrink(columns, widths, kept, screen.width, _SHORTEST)
    yield screen.style(
        _line([column.title for column in columns], columns, widths, kept, screen), 1
    )
    for row in rows:
        yield _line(row, columns, widths, kept, screen)


def _shrink(
    columns: Sequence[Column], widths: list[int], kept: Sequence[int], limit: int, shortest: int
) -> None:
    """Take from the widest columns that may be cut, until all fit or none has more to give."""
    while (excess := _total([widths[i] for i in kept]) - limit) > 0:
        wide = [i for i in kept if columns[i].cut and widths[i] > shortest]
        if not wide:
            return
        widest = max(wide, key=widths.__getitem__)
        next_widest = max((widths[i] for i in wide if i != widest), default=shortest)
        widths[widest] -= min(excess, max(1, widths[widest] - next_widest))


def _leave_out(columns: Sequence[Column], widths: list[int], limit: int) -> list[int]:
    kept = list(range(len(columns)))
    for i in reversed(range(len(columns))):
        if _total([widths[k] for k in kept]) <= limit:
            break
        if columns[i].spare:
            kept.remove(i)
    return kept


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(
    cells: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    kept: Sequence[int],
    screen: Screen,
) -> str:
    padded = []
    for i in kept:
        text = cut(cells[i], widths[i], "…" if screen.glyphs else "...")
        space = " " * (widths[i] - width_of(text))
        padded.append(space + text if columns[i].right else text + space)
    return _GAP.join(padded).rstrip()


def cut(text: str, width: int, mark: str = "…") -> str:
    """`text` in at most `width` columns: what is too long loses its middle to `mark`."""
    if width_of(text) <= width:
        return text
    left = (width - len(mark) + 1) // 2
    right = width - len(mark) - left
    return _start(text, left) + mark + _start(text[::-1], right)[::-1]


def _start(text: str, width: int) -> str:
    """The longest start of `text` in at most `width` columns."""
    while width_of(text) > width:
        text = text[: min(len(text) - 1, width)] if len(text) > width else text[:-1]
    return text


def width_of(text: str) -> int:
    """Columns that `text` takes on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
