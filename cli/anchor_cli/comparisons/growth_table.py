"""The table of `anchor compare` on how differences grow: rows are steps, columns are kinds.

It takes as many lines and columns as there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from anchor_cli.terminal import MORE, Column, ReportPart, Screen, titled, written

if TYPE_CHECKING:
    from anchorlib.diagnosis import Section

__all__ = ["growth", "spread"]

Item = TypeVar("Item")

_MOST_STEPS = 6
_KEPT = ("step", "score")  # columns that are never cut


def growth(section: Section, width: int, screen: Screen) -> ReportPart:
    """Returns the table as a part of the terminal report that can be shown with fewer rows.

    The table shows the first row, the last, the first in which records differ, and as many rows
    between them as fit, at most six rows in all. Without room for any row, one line says how many
    steps there are.

    section: the comparison's section on growth: title, column heads and rows of the table.
    width: the columns of the terminal.
    """
    head = titled(screen, section.title, section.head)
    last = len(section.heads) - 1
    columns = [
        Column(title, right=True)
        if place in (0, last) and title in _KEPT
        else Column(title, right=True, cut=True, spare=1)
        for place, title in enumerate(section.heads)
    ]
    inner = Screen(width - 2, glyphs=screen.glyphs)

    def lines(count: int) -> list[str]:
        if not count:
            return [titled(screen, section.title, f"{len(section.rows):,} steps: {MORE}")]
        rows = [section.rows[place] for place in _places(section, count)]
        return [head, *(f"  {line}" for line in written(columns, rows, inner))]

    return ReportPart(min(len(section.rows), _MOST_STEPS), lines, least=3)


def _places(section: Section, count: int) -> list[int]:
    """Returns which rows to show: evenly spaced ones, and the first in which records differ."""
    places = spread(range(len(section.rows)), count)
    parted = next((at for at, row in enumerate(section.rows) if any(map(_differs, row[1:]))), 0)
    if parted not in places:
        inner = places[1:-1] or places[:1]
        places.remove(min(inner, key=lambda place: abs(place - parted)))
        places.append(parted)
    return sorted(places)


def _differs(cell: str) -> bool:
    """Whether a cell, "3/16 1.2" for 3 of 16 records, counts records that differ."""
    return "/" in cell and not cell.startswith("0/")


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """Returns `count` of the items: the first, the last, and some evenly spaced between them.

    Returns all items where there are no more than `count`, and the first alone for a count of 1.
    """
    if count >= len(items):
        return list(items)
    last = max(count - 1, 1)
    return [items[place * (len(items) - 1) // last] for place in range(count)]
