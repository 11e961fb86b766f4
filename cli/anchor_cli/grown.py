"""How differences grow: a table of steps by kinds, as high and as wide as there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anchor_cli.sections import Section, titled
from anchor_cli.table import Column, written
from anchor_cli.terminal import Screen
from anchor_cli.words import figure
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Growth

__all__ = ["growth", "spread"]

_MOST_STEPS = 6
Cells = Mapping[tuple[int, str], "Growth"]


def growth(found: Comparison, width: int, screen: Screen) -> list[Section]:
    """The section; none where nothing differs."""
    cells = {(one.step, one.kind): one for one in found.growth}
    kinds = list(dict.fromkeys(one.kind for one in found.growth if one.differing))
    if not kinds:
        return []
    steps = sorted({one.step for one in found.growth})
    scored = any(one.score is not None for one in found.growth)
    meaning = "differing/all, median error in eps" + ("; score: times noise" if scored else "")
    head = titled(screen, "GROWTH", meaning)

    def lines(count: int) -> list[str]:
        rows = [_row(cells, step, kinds, scored=scored) for step in spread(steps, count)]
        return [head, *_narrowed(kinds, rows, width, screen, scored=scored)]

    return [Section(min(len(steps), _MOST_STEPS), lines, least=3)]


def spread(steps: Sequence[int], count: int) -> list[int]:
    """`count` of the steps: the first, the last, and some between them, evenly."""
    if count >= len(steps):
        return list(steps)
    last = max(count - 1, 1)
    return [steps[place * (len(steps) - 1) // last] for place in range(count)]


def _row(cells: Cells, step: int, kinds: Sequence[str], *, scored: bool) -> list[str]:
    here = [cells.get((step, kind)) for kind in kinds]
    row = [str(step), *map(_cell, here)]
    if scored:
        scores = [one.score for one in here if one is not None and one.score is not None]
        row.append(figure(max(scores)) if scores else "-")
    return row


def _cell(one: Growth | None) -> str:
    if one is None:
        return "-"
    error = "" if one.median_error_eps is None else f" {figure(one.median_error_eps)}"
    return f"{one.differing:,}/{one.matched:,}{error}"


def _narrowed(
    kinds: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    screen: Screen,
    *,
    scored: bool,
) -> list[str]:
    """The table, indented; kinds give way from the right where it is too wide."""
    columns = [Column("step", right=True)]
    columns += [Column(escape(kind), right=True, cut=True, spare=1) for kind in kinds]
    columns += [Column("score", right=True)] if scored else []
    inner = Screen(width - 2, glyphs=screen.glyphs)
    return [f"  {line}" for line in written(columns, rows, inner)]
