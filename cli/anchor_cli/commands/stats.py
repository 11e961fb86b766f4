"""`anchor stats`: prints the summary columns of tensors, one row for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Annotated, Any

import typer

from anchor_cli.arguments import (
    DaskOption,
    JsonOption,
    RunArgument,
    Selection,
    StoreOption,
    TensorOption,
    examples,
    narrowing,
    spread_over,
)
from anchor_cli.commands.names import spans
from anchor_cli.terminal import Column, Screen, document, emit, this_screen, written

__all__ = ["EXAMPLES", "show_stats"]

EXAMPLES = examples(
    "anchor stats run1 --tensor fc2.bias@grad",
    "anchor stats run1 --tensor 'fc*@grad' --step 0:10 --json",
)

_COLUMNS = [
    Column("tensor", cut=True, main=True),
    Column("step", right=True),
    Column("pass", right=True, spare=3),
    Column("call", right=True, spare=2),
    Column("rank", right=True, spare=2),
    Column("phase", cut=True, spare=2),
    Column("min", right=True),
    Column("max", right=True),
    Column("sum", right=True),
    Column("l2", right=True),
    Column("zero", right=True, spare=3),
    Column("nan", right=True),
    Column("inf", right=True),
    Column("subnormal", right=True, spare=1),
    Column("count", right=True, spare=1),
    Column("attempt", right=True, spare=1),
    Column("order", right=True),
    Column("time_ns", right=True),
    Column("digest"),
    Column("flags", spare=3),
    Column("scale", right=True, spare=2),
]
_STORED = {"pass": "pass_index"}
_FLOATS = {"min": ".4g", "max": ".4g", "sum": ".4g", "l2": ".4g", "scale": ".10g"}
"""Format of the columns with floats on a terminal; pipes and files get every digit."""
_USUAL = {
    "pass": "0",
    "call": "0",
    "rank": "0",
    "phase": "train",
    "attempt": "0",
    "subnormal": "0",
    "flags": "-",
    "scale": "1",
}
"""Usual values: a terminal shows these columns only where a record has another value."""
_FOR_PROGRAMS = ("sum", "order", "time_ns", "digest")
"""Columns that a terminal shows only with --all."""


@narrowing
def show_stats(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    tensor: TensorOption,
    selection: Selection,
    whole: Annotated[
        bool, typer.Option("--all", help="Show all columns, however wide the lines become.")
    ] = False,
    dask: DaskOption = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Show count, extremes, sums and digest of every record.

    A terminal shows the most useful columns, as many as fit, and one line for all ranks that
    recorded the same bits; --all shows every column and rank. A pipe and --json have them all.
    """
    from anchor_cli.records import answered, lost, selected, settled, summaries
    from anchorlib.reading import open_run

    opened = open_run(run, store=store)
    selection = settled(opened, tensor, selection)
    chosen = selected(opened, tensor, selection)
    with spread_over(dask) as over:
        entries = summaries([one for part in chosen for one in part.series], over)
    if as_json:
        document(entries)
    else:
        screen = this_screen()
        rows = [_cells(row, screen) for row in entries]
        if screen.human and not whole:
            rows = _folded(rows)
        emit(_table(rows, screen, several=len(chosen) > 1, whole=whole))
    return answered(lost(opened, tensor, chosen, selection))


def _cells(entry: dict[str, Any], screen: Screen) -> list[str]:
    from anchorlib.names import escape, join

    entry = {**entry, "tensor": join(entry["tensor"], entry["kind"])}
    cells = []
    for column in _COLUMNS:
        value = entry[_STORED.get(column.title, column.title)]
        if column.title in _FLOATS:
            cells.append(format(value, _FLOATS[column.title]) if screen.human else repr(value))
        else:
            cells.append(escape(str(value)) or "-")
    return cells


def _folded(rows: Sequence[list[str]]) -> list[list[str]]:
    """Merges rows that differ only in rank, order and time, and returns the merged rows.

    The rank cell of a merged row lists the ranks, such as "0-3,8"; its order and time are those of
    the first of the rows.
    """
    titles = [column.title for column in _COLUMNS]
    rank = titles.index("rank")
    apart = {rank, titles.index("order"), titles.index("time_ns")}
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        key = tuple(cell for at, cell in enumerate(row) if at not in apart)
        groups.setdefault(key, []).append(row)
    folded = []
    for alike in groups.values():
        ranks = spans(tuple(sorted({int(row[rank]) for row in alike})))
        folded.append([*alike[0][:rank], ranks, *alike[0][rank + 1 :]])
    return folded


def _table(
    rows: Sequence[Sequence[str]], screen: Screen, *, several: bool, whole: bool
) -> Iterator[str]:
    shown = [
        i
        for i, column in enumerate(_COLUMNS)
        # A single tensor is not named in every row.
        if not (column.title == "tensor" and not several)
        and (whole or not screen.human or _is_read(column.title, {row[i] for row in rows}))
    ]
    if whole:
        screen = replace(screen, width=None)
    return written([_COLUMNS[i] for i in shown], [[row[i] for i in shown] for row in rows], screen)


def _is_read(title: str, cells: Set[str]) -> bool:
    """Returns whether a terminal shows a column of the table.

    Hidden are the columns that only programs need, such as the digest, and columns of which every
    cell has the usual value, such as "0" for the pass.

    title: the column's title. cells: the texts that occur in the column.
    """
    return title not in _FOR_PROGRAMS and not cells <= {_USUAL.get(title)}
