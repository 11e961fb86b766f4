"""`anchor names`: lists the tensors of a run, in execution order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, complete, examples
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import (
    Column,
    Screen,
    document,
    emit,
    note,
    shown_shape,
    size,
    spans_of,
    this_screen,
    written,
)

if TYPE_CHECKING:
    from anchor_cli.records import Gaps
    from anchorlib import Run, TensorInfo

__all__ = ["EXAMPLES", "GAPS", "show_names", "spans"]

EXAMPLES = examples(
    "anchor names run1",
    "anchor names run1 --tree",
    "anchor names run1 'fc*@grad' 're:.*[.]bias' --json",
)

_FIELDS = ("name", "kind", "mode", "dtype", "shape", "ranks", "records")
_COLUMNS = [
    Column("name", cut=True, main=True),
    Column("kind", cut=True),
    Column("mode", cut=True, spare=1),
    Column("dtype", cut=True, spare=2),
    Column("shape", cut=True),
    Column("ranks", cut=True, spare=1),
    Column("records", right=True),
    Column("steps", cut=True),
    Column("size", right=True, spare=2),
]
GAPS = Column("gaps", right=True)
"""A table column: how many observations were not recorded, or without values; left out for none."""


def show_names(
    run: RunArgument,
    selector: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SELECTOR",
            help="List only the tensors that these select, as 'fc*@grad'.",
            autocompletion=complete.selectors,
        ),
    ] = None,
    *,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree", help="Show a tree of modules, with one line for each name and its kinds."
        ),
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """List the tensors of a run in execution order.

    Where observations were not recorded, or not with their values, a column shows how many.
    Tensors without any record are named on stderr. On a terminal a last line shows what ended the
    steps.
    """
    from anchor_cli.records import Gaps, clauses_of
    from anchor_cli.terminal import lines
    from anchorlib.reading import open_run

    opened = open_run(run, store=store)
    gaps = Gaps(opened)
    entries = [_entry(info, gaps) for info in _listed(opened, selector or (), gaps)]
    if as_json:
        document(entries)
    else:
        screen = this_screen()
        emit(lines(entries, screen) if tree else _table(entries, screen))
        if screen.human:
            emit(_ender(opened, screen))
    if problem := "; ".join(clauses_of(gaps.unrecorded(selector or ("*",)))):
        note(problem)
    return ExitCode.DONE


def _ender(run: Run, screen: Screen) -> list[str]:
    """Returns a list with the line that says what ended the run's steps, such as an optimizer.

    Returns [] where the run's header does not say what ended them.
    """
    from anchorlib.names import escape

    ender = run.header().get("steps.ended_by")
    return [screen.style(f"steps ended by {escape(ender)}", 2)] if isinstance(ender, str) else []


def _listed(run: Run, selectors: Sequence[str], gaps: Gaps) -> list[TensorInfo]:
    """Returns the tensors that the selectors name; all tensors where there is no selector.

    A selector that matches only tensors without any record adds nothing. Raises UnknownTensorError
    for a selector that matches nothing at all.
    """
    from anchorlib.errors import UnknownTensorError

    if not selectors:
        return run.tensors()
    known = []
    for selector in selectors:
        try:
            run.tensors(selector)
        except UnknownTensorError:
            if not gaps.unrecorded([selector]):
                raise
        else:
            known.append(selector)
    return run.tensors(*known) if known else []


def _entry(info: TensorInfo, gaps: Gaps) -> dict[str, Any]:
    return {
        **{field: getattr(info, field) for field in _FIELDS},
        "first_step": info.first_step,
        "last_step": info.last_step,
        "bytes": info.bytes,
        "gaps": gaps.count(info),
    }


def _table(entries: Sequence[Mapping[str, Any]], screen: Screen) -> Iterator[str]:
    rows = [_row(entry, screen) for entry in entries]
    if not any(entry["gaps"] for entry in entries):
        return written(_COLUMNS, rows, screen)
    with_gaps = [[*row, str(entry["gaps"])] for row, entry in zip(rows, entries, strict=True)]
    return written([*_COLUMNS, GAPS], with_gaps, screen)


def _row(entry: Mapping[str, Any], screen: Screen) -> list[str]:
    from anchorlib.names import escape

    return [
        escape(entry["name"]),
        escape(entry["kind"]),
        escape(entry["mode"]),
        escape(entry["dtype"]),
        shown_shape(entry["shape"]),
        spans(entry["ranks"]),
        str(entry["records"]),
        spans_of(entry["first_step"], entry["last_step"]),
        size(entry["bytes"], screen),
    ]


def spans(numbers: tuple[int, ...]) -> str:
    """Writes sorted numbers as ranges: (0, 1, 2, 3, 8) becomes "0-3,8"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(spans_of(first, last) for first, last in parts)
