"""Lays out a report of limited height: each part shows as many entries as there is room for."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anchor_cli.terminal.screen import Screen
from anchor_cli.terminal.table import cut, width_of

__all__ = ["MORE", "ReportPart", "fitted", "listed", "titled", "wrapped"]

MORE = "--json has them all"
_CHAIN = re.compile(r"[^/]*/|[^/]+")
_FILLER = "\0"  # a character that no shown text holds


class ReportPart(NamedTuple):
    """One part of a report, which can show more or fewer entries.

    most: how many entries it has.
    lines: called with a number n, returns the lines that show the first n entries.
    least: how many entries it shows at least, if there is room.
    kept: the part's priority: where there is too little room, parts with a lower number are the
        first to show no entry, and of equal parts the last one.
    """

    most: int
    lines: Callable[[int], list[str]]
    least: int = 1
    kept: int = 0


def fitted(blocks: Sequence[ReportPart], height: int) -> list[str]:
    """Returns the lines of all parts of a report, at most `height` where that is possible.

    Each part shows its least number of entries (`least`) if there is room for all of these.
    Otherwise each part shows one entry, and while that takes too many lines, the part of the lowest
    priority (`kept`) that still shows an entry shows none. Lines that are left over are shared:
    each part in turn gets one more entry.
    """
    shown = [min(block.least, block.most) for block in blocks]
    if len(_all(blocks, shown)) > height:
        shown = [min(1, block.most) for block in blocks]
    for place in sorted(range(len(blocks)), key=lambda at: (blocks[at].kept, -at)):
        if len(_all(blocks, shown)) > height:
            shown[place] = 0
    waiting = {place for place, block in enumerate(blocks) if block.most > shown[place]}
    while waiting:
        for place in sorted(waiting):
            shown[place] += 1
            if len(_all(blocks, shown)) > height:
                shown[place] -= 1
                waiting.discard(place)
            elif shown[place] == blocks[place].most:
                waiting.discard(place)
    return _all(blocks, shown)


def _all(blocks: Sequence[ReportPart], shown: Sequence[int]) -> list[str]:
    return [line for block, count in zip(blocks, shown, strict=True) for line in block.lines(count)]


def listed(
    head: str, entries: Sequence[Sequence[str]], more: str, *, headed: bool = False
) -> ReportPart:
    """Returns a part of a report that is a head line and a list of entries.

    entries: the lines of each entry.
    more: where to see the entries that do not fit; it is printed after "and 3 more: ".
    headed: whether the first line of an entry tells enough by itself. Where only the last entry
        does not fit, its first line is then shown in place of "and 1 more", which would take a line
        as well. A last entry of a single line is shown in any case.
    """

    def lines(count: int) -> list[str]:
        chosen = [line for entry in entries[:count] for line in entry]
        left = len(entries) - count
        if left == 1 and (headed or len(entries[-1]) <= 1):
            return [head, *chosen, *entries[-1][:1]]
        return [head, *chosen, *([f"  and {left:,} more: {more}"] if left else [])]

    return ReportPart(len(entries), lines)


def wrapped(text: str, width: int, most: int | None = 3, indent: str = "  ") -> list[str]:
    """Wraps text into at most `most` lines of `width` columns, and returns the lines.

    Where the text takes more lines, the last line is cut.

    most: None returns as many lines as the text takes.
    indent: what all lines but the first begin with.
    """
    lines = _broken(text, width, indent) or [""]
    if most is not None and len(lines) > most:
        rest = " ".join(line.strip() for line in lines[most - 1 :])
        lines[most - 1 :] = [cut(f"{indent}{rest}", width, "...", left=width - 3)]
    return lines


def _broken(text: str, width: int, indent: str) -> list[str]:
    """Wraps text into lines; unlike textwrap, counts a character of two columns twice."""
    if text.isascii():
        return _Wrapper(width, subsequent_indent=indent).wrap(text)
    spread = "".join(char + _FILLER * (width_of(char) - 1) for char in text)
    # One column less: where a wide character ends a line, its filler begins the next line.
    lines = _Wrapper(width - 1, subsequent_indent=indent).wrap(spread)
    return [line.replace(_FILLER, "") for line in lines]


class _Wrapper(textwrap.TextWrapper):
    """A TextWrapper that may also break a long chain of names (`one/two/three`) behind a "/".

    The plain TextWrapper would break a chain that is too long for a line in the middle of a name.
    """

    def _split(self, text: str) -> list[str]:
        chunks = super()._split(text)
        return [
            part
            for chunk in chunks
            for part in (_CHAIN.findall(chunk) if width_of(chunk) > self.width // 2 else [chunk])
        ]


def titled(screen: Screen, title: str, text: str) -> str:
    """Returns a line: the title of a section in bold, two spaces, and `text`."""
    return f"{screen.style(title, 1)}  {text}".rstrip()
