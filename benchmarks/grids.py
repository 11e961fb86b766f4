"""Figures that share a heading, as a table of rows and columns: smallest, median, target."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.figures import Figure, number

__all__ = ["grids"]


def grids(figures: Iterable[Figure]) -> str:
    """A Markdown table for each heading, in the order of their first figures."""
    headed: dict[str, list[Figure]] = {}
    for one in figures:
        headed.setdefault(one.heading, []).append(one)
    return "\n\n".join(grid(heading, cells) for heading, cells in headed.items())


def grid(heading: str, cells: list[Figure]) -> str:
    """The table of one heading; below it, why targets are missed."""
    rows: dict[str, dict[str, Figure]] = {}
    for one in cells:
        rows.setdefault(one.what, {})[one.column] = one
    columns = list(dict.fromkeys(one.column for one in cells))
    lines = [f"| {heading} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for what, row in rows.items():
        told = [shown(row[column]) if column in row else "" for column in columns]
        lines.append(f"| {what} | {' | '.join(told)} |")
    reasons = [
        f"\n{one.what.partition(':')[0]}, {one.column}: {one.why}."
        for one in cells
        if one.why and one.met is False
    ]
    return "\n".join([*lines, *reasons])


def shown(one: Figure) -> str:
    """Smallest / median, and beside them the target and whether it is met.

    By the median; "at best" where only the smallest meets it.
    """
    value = number(one.value)
    figure = value if one.low == one.high else f"{number(one.low)} / {value}"
    figure = f"{figure} {one.unit}".rstrip()
    if one.met is None:
        return figure
    at_best = one.at_most is not None and one.low <= one.at_most
    verdict = "met" if one.met else "**met at best**" if at_best else "**missed**"
    return f"{figure} ({one.target.rstrip()}: {verdict})"
