"""A report of a fixed height: blocks of lines that show as much as the others leave them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anchor_cli.terminal.screen import Screen
from anchor_cli.terminal.table import cut, width_of

__all__ = ["MORE", "Block", "fitted", "listed", "titled", "wrapped"]

MORE = "--json has them all"
_FILLER = "\0"  # what is shown holds none


class Block(NamedTuple):
    """One part of a report.

    most: how many entries it has.
    lines: it, with that many of its entries.
    least: of how many it should not have less, if there is room.
    kept: how long its first entry stays: where there is room for few, others go before it.
    """

    most: int
    lines: Callable[[int], list[str]]
    least: int = 1
    kept: int = 0


def fitted(blocks: Sequence[Block], height: int) -> list[str]:
    """The lines of all blocks, one entry of each if possible, at most `height` of them.

    What is left goes round: an entry to the first that is short of some, then to the next.
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


def _all(blocks: Sequence[Block], shown: Sequence[int]) -> list[str]:
    return [line for block, count in zip(blocks, shown, strict=True) for line in block.lines(count)]


def listed(
    head: str, entries: Sequence[Sequence[str]], more: str, *, headed: bool = False
) -> Block:
    """A head and entries of one or more lines each; `more` says where the others are.

    headed: whether an entry's first line can do without the others: where one entry is left, that
        line costs no more than to say so.
    """

    def lines(count: int) -> list[str]:
        chosen = [line for entry in entries[:count] for line in entry]
        left = len(entries) - count
        if left == 1 and (headed or len(entries[-1]) <= 1):
            return [head, *chosen, *entries[-1][:1]]
        return [head, *chosen, *([f"  and {left:,} more: {more}"] if left else [])]

    return Block(len(entries), lines)


def wrapped(text: str, width: int, most: int | None = 3, indent: str = "  ") -> list[str]:
    """`text` in at most `most` lines of so many columns, all but the first indented.

    most: None for all of it.
    """
    lines = _broken(text, width, indent) or [""]
    if most is not None and len(lines) > most:
        rest = " ".join(line.strip() for line in lines[most - 1 :])
        lines[most - 1 :] = [cut(f"{indent}{rest}", width, "...", left=width - 3)]
    return lines


def _broken(text: str, width: int, indent: str) -> list[str]:
    """The lines; textwrap counts characters, some of which take two columns."""
    if text.isascii():
        return textwrap.wrap(text, width, subsequent_indent=indent)
    spread = "".join(char + _FILLER * (width_of(char) - 1) for char in text)
    # A wide character may end a line, and leave what fills it to the next.
    lines = textwrap.wrap(spread, width - 1, subsequent_indent=indent)
    return [line.replace(_FILLER, "") for line in lines]


def titled(screen: Screen, title: str, text: str) -> str:
    """A line whose first word is its section's title."""
    return f"{screen.style(title, 1)}  {text}".rstrip()
