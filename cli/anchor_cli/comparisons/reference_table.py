"""The table of `anchor compare REF A B` that says which of A and B is nearer to the reference.

It has a row for each origin: a difference whose inputs are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchor_cli.terminal import MORE, Column, ReportPart, Screen, wrapped, written

if TYPE_CHECKING:
    from anchorlib.diagnosis import Section

__all__ = ["reference"]


def reference(section: Section, width: int, screen: Screen) -> ReportPart:
    """Returns the table as a part of the terminal report that can be shown with fewer rows.

    The table shows as many of the first rows as fit.

    section: the comparison's section on the reference: title, column heads and rows of the table.
    width: the columns of the terminal.
    """
    first, *rest = wrapped(f"{section.title}  {section.subject}{section.head}", width, 2)
    head = [first.replace(section.title, screen.style(section.title, 1), 1), *rest]
    if not section.rows:
        return ReportPart(0, lambda _: head)
    inner = Screen(width - 2, glyphs=screen.glyphs)

    def lines(count: int) -> list[str]:
        table = written(_columns(section), section.rows[:count], inner) if count else ()
        left = len(section.rows) - count
        more = [f"  and {left:,} more: {MORE}"] if left else []
        return [*head, *(f"  {line}" for line in table), *more]

    return ReportPart(len(section.rows), lines, kept=2)  # kept longest: no other section shows it


def _columns(section: Section) -> list[Column]:
    where, record, *figures, nearer = section.heads
    return [
        Column(where, cut=True, spare=2),
        Column(record, cut=True, main=True),
        *(Column(one, right=True, spare=int("rel" in one)) for one in figures),
        Column(nearer, cut=True),
    ]
