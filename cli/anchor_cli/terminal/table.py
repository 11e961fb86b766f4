"""Lays out tables: columns are cut or left out where the terminal is too narrow.

A cut name loses its start, because its end says which module and parameter it is; any other text
loses its middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from anchor_cli.terminal.screen import Screen

__all__ = ["Column", "cut", "cut_apart", "cut_name", "width_of", "written"]

_GAP = "  "
_READABLE = 20  # width of a cut text while another column can be left out instead
_SHORTEST = 8
_DIFFERENCES = 4  # rounds in which names that look alike are given more of their modules


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    right: align right, as numbers are.
    cut: the column's texts may be cut where the terminal is narrow.
    main: the column holds names: it is cut last, and different names then still look different.
    spare: when the column may be left out where cutting is not enough: 0 is never, and columns with
        1 are left out before columns with 2, of equal columns the rightmost first.
    """

    title: str
    right: bool = False
    cut: bool = False
    main: bool = False
    spare: int = 0


def written(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], screen: Screen
) -> Iterator[str]:
    """Yields the lines of a table, the column titles first.

    Where the screen has a width, columns are cut and left out so that the lines fit, if they can.

    rows: the cells of each row as text, one for each column.
    """
    widths = [
        max([width_of(column.title), *(width_of(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    if screen.width is not None:
        whole = list(widths)
        _shrink(columns, widths, kept, screen.width, _READABLE)
        kept = _leave_out(columns, widths, screen.width)
        widths = whole  # the columns that were left out leave room for the others
        for shortest in (_READABLE, _SHORTEST):
            _shrink(columns, widths, kept, screen.width, shortest)
    mark = "…" if screen.glyphs else "..."
    shown = [_fitted(columns[i], [row[i] for row in rows], widths[i], mark) for i in kept]
    heads = [cut(columns[i].title, widths[i], mark) for i in kept]
    layout = [(columns[i].right, widths[i]) for i in kept]
    yield screen.style(_line(heads, layout), 1)
    for cells in zip(*shown, strict=True):
        yield _line(cells, layout)


def _fitted(column: Column, texts: Sequence[str], width: int, mark: str) -> list[str]:
    if column.main:
        short = cut_apart(texts, width, mark)
        return [short[text] for text in texts]
    return [cut(text, width, mark) for text in texts]


def _shrink(
    columns: Sequence[Column], widths: list[int], kept: Sequence[int], limit: int, shortest: int
) -> None:
    """Narrows the widest columns that may be cut, until the table fits or none is left to narrow.

    The column of names (`main`) is narrowed only when no other column can be.

    widths: the widths of all columns; changed in place.
    kept: the indices of the columns that are shown.
    limit: the width into which the table has to fit.
    shortest: the least width to which a column is narrowed.
    """
    while (excess := _total([widths[i] for i in kept]) - limit) > 0:
        wide = [i for i in kept if columns[i].cut and widths[i] > shortest]
        wide = [i for i in wide if not columns[i].main] or wide
        if not wide:
            return
        widest = max(wide, key=widths.__getitem__)
        next_widest = max((widths[i] for i in wide if i != widest), default=shortest)
        widths[widest] -= min(excess, max(1, widths[widest] - next_widest))


def _leave_out(columns: Sequence[Column], widths: list[int], limit: int) -> list[int]:
    kept = list(range(len(columns)))
    spare = [i for i in reversed(kept) if columns[i].spare]
    for i in sorted(spare, key=lambda i: columns[i].spare):
        if _total([widths[k] for k in kept]) <= limit:
            break
        kept.remove(i)
    return kept


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(cells: Sequence[str], layout: Sequence[tuple[bool, int]]) -> str:
    """Returns a line of a table.

    layout: for each cell, whether its text is aligned right, and the cell's width.
    """
    padded = []
    for text, (right, width) in zip(cells, layout, strict=True):
        space = " " * (width - width_of(text))
        padded.append(space + text if right else text + space)
    return _GAP.join(padded).rstrip()


def cut(text: str, width: int, mark: str = "…", left: int | None = None) -> str:
    """Returns text cut to at most `width` columns: its middle is replaced by `mark`.

    left: how many columns at the start of the text stay, while the rest of the width goes to its
        end; None keeps as much of the start as of the end.
    """
    if width_of(text) <= width:
        return text
    room = width - len(mark)
    left = (room + 1) // 2 if left is None else left
    return _start(text, left) + mark + _end(text, room - left)


def cut_name(name: str, width: int, mark: str = "…") -> str:
    """Returns a dotted name cut to at most `width` columns: its start is replaced by `mark`.

    What stays begins behind a dot, unless that would drop more than half of what fits.
    """
    short = cut(name, width, mark, left=0)
    if short == name:
        return name
    end = short.removeprefix(mark)
    inside = end.find(".") + 1
    begins = name[: len(name) - len(end)].endswith(".")
    return mark + end[inside:] if not begins and 0 < inside <= len(end) // 2 else short


def cut_apart(names: Iterable[str], width: int, mark: str = "…") -> dict[str, str]:
    """Cuts names to at most `width` columns so that different names still look different.

    Returns the cut forms, keyed by the whole names. Names whose ends are equal also show the
    modules in which they differ, or are cut at another place. In too few columns some names may
    look alike.
    """
    several = list(dict.fromkeys(names))
    ways = [_cut_apart(several, width, mark, first) for first in (_by_parts, _in_the_middle)]
    return max(ways, key=lambda short: len(set(short.values())))


def _in_the_middle(texts: Sequence[str], width: int, mark: str) -> dict[str, str]:
    return {text: cut(text, width, mark) for text in texts}


def _cut_apart(
    texts: Sequence[str], width: int, mark: str, first: Callable[..., dict[str, str]]
) -> dict[str, str]:
    short = first(texts, width, mark)
    left, taken = _same(short), set(short.values())
    while left:
        tried = [{text: way(text) for text in left} for way in _ways(left, width, mark)]
        apart = max((_apart(one, taken) for one in tried), key=len)
        if not apart:  # too narrow to tell all of them apart: the way with most different texts
            return short | max(tried, key=lambda one: len(set(one.values())))
        short |= apart
        taken |= set(apart.values())
        left = [text for text in left if text not in apart]
    return short


def _by_parts(names: Sequence[str], width: int, mark: str) -> dict[str, str]:
    """Cuts dotted names so that their ends stay; returns the cut forms, keyed by whole name.

    Names with equal ends also show the modules in which they differ.
    """
    parts = {name: name.split(".") for name in names}
    at: dict[str, set[int]] = {name: set() for name in names}
    short: dict[str, str] = {}
    for _ in range(_DIFFERENCES):
        short = {name: _parted(parts[name], sorted(at[name]), width, mark) for name in names}
        alike: dict[str, list[str]] = {}
        for name in _same(short):
            alike.setdefault(short[name], []).append(name)
        if not alike:
            break
        for several in alike.values():
            depth = min(len(parts[name]) for name in several) - 1
            differ = {i for i in range(depth) if len({parts[name][i] for name in several}) > 1}
            for name in several:
                at[name] |= differ
    return short


def _parted(parts: Sequence[str], at: Sequence[int], width: int, mark: str) -> str:
    """Returns a dotted name cut to some of its parts and as much of its end as fits.

    parts: the parts of the name, between the dots. at: the indices of the parts that stay; where
        there is no room for them, only the end stays.
    """
    whole = ".".join(parts)
    if not at or width_of(whole) <= width:
        return cut_name(whole, width, mark)
    head = ""
    for i in at:
        head += ("." if i - 1 in at else mark if i else "") + parts[i]
    rest = ".".join(parts[at[-1] + 1 :])
    if width_of(f"{head}.{rest}") <= width:
        return f"{head}.{rest}"
    room = width - width_of(head)
    return head + cut_name(rest, room, mark) if room >= _SHORTEST else cut_name(whole, width, mark)


def _same(short: Mapping[str, str]) -> list[str]:
    """Returns the texts whose cut form equals that of another text.

    short: the cut forms, keyed by text.
    """
    seen = Counter(short.values())
    return [text for text, shown in short.items() if seen[shown] > 1]


def _apart(tried: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """Returns the cut forms that are unique in `tried` and do not occur in `taken`.

    tried: cut forms, keyed by text, as the result is. taken: cut forms of other texts.
    """
    same = set(_same(tried))
    return {text: shown for text, shown in tried.items() if text not in same and shown not in taken}


def _ways(texts: Sequence[str], width: int, mark: str) -> Iterator[Callable[[str], str]]:
    """Yields functions that cut a text in various ways: each takes a text, and returns it cut.

    They keep more or less of its start, or show the text around the first position at which the
    alphabetically first and last of `texts` differ.
    """
    room = width - len(mark)
    for left in sorted(range(room + 1), key=lambda left: abs(2 * left - room)):
        yield partial(cut, width=width, mark=mark, left=left)
    ends = zip(min(texts), max(texts), strict=False)
    parting = next((i for i, (one, other) in enumerate(ends) if one != other), 0)
    if room - len(mark) >= _SHORTEST // 2:
        for before in (2, 0):
            yield partial(_around, begin=parting - before, width=width, mark=mark)


def _around(text: str, begin: int, width: int, mark: str) -> str:
    """Returns a text cut to `width` columns: its start, the part from `begin` on, and its end.

    Start and end take about a quarter of the columns each. begin: an index into the text.
    """
    room = width - 2 * len(mark)
    end = room // 4
    inner = room - 2 * end
    begin = max(end, min(begin, len(text) - end - inner))
    parts = (text[:end], text[begin : begin + inner], text[len(text) - end :])
    return cut(mark.join(parts), width, mark)


def _start(text: str, width: int) -> str:
    """Returns the longest beginning of a text that takes at most `width` columns."""
    while width_of(text) > width:
        text = text[: min(len(text) - 1, width)] if len(text) > width else text[:-1]
    return text


def _end(text: str, width: int) -> str:
    """Returns the longest ending of a text that takes at most `width` columns."""
    while width_of(text) > width:
        text = text[max(1, len(text) - width) :]
    return text


def width_of(text: str) -> int:
    """Returns how many columns text takes on a terminal: wide characters two, combining ones 0."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
