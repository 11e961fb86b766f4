"""`anchor ops`: lists traced operations in the order in which they ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import (
    JsonOption,
    ModuleOption,
    RunArgument,
    StageOption,
    StepOption,
    StoreOption,
    chosen_steps,
    examples,
    tell_gaps,
    traced_ops,
)
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import Column, Screen, document, emit, shown_shape, this_screen, written

if TYPE_CHECKING:
    from anchorlib.operations import Op

__all__ = ["EXAMPLES", "show_ops"]

EXAMPLES = examples(
    "anchor ops run1",
    "anchor ops run1 --stage backward --module 'encoder.*'",
    "anchor ops run1 --grep tanh --step 0 --json",
)

_COLUMNS = [
    Column("step", right=True),
    Column("rank", right=True),
    Column("op", right=True),
    Column("stage", cut=True),
    Column("module", cut=True, main=True),
    Column("operation", cut=True),
    Column("origin", cut=True),
    Column("kernel", right=True),
    Column("makes", cut=True, spare=3),
    Column("where", cut=True, spare=2),
    Column("arguments", cut=True, spare=1),
]
_MOST_SHAPES = 2


def show_ops(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep",
            metavar="TEXT",
            help="List only operations whose name, origin, node, line or arguments match this "
            "regular expression.",
            show_default=False,
        ),
    ] = None,
    stage: StageOption = None,
    module: ModuleOption = None,
    step: StepOption = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """List the operations of the traced steps, in the order in which they ran.

    For compiled code the column origin shows the operation before it was decomposed (where that is
    another one), and kernel the number of the kernel that computes it: operations with the same
    number are fused.

    Steps that could not be traced are named on stderr. --json prints one object for each operation
    and step.
    """
    from anchorlib.errors import OptionError
    from anchorlib.operations import select_ops
    from anchorlib.reading import open_run

    opened = open_run(run, store=store)
    every = traced_ops(opened)
    ops = _searched(select_ops(every, stage, module, chosen_steps(step, every)), grep)
    tell_gaps(opened)
    if not ops:
        raise OptionError(
            f"no traced operation of {opened.name} is selected; see `anchor ops {opened.name}`"
        )
    if as_json:
        document([op.to_dict() for op in ops])
    else:
        emit(_table(ops, _narrowed(this_screen())))
    return ExitCode.DONE


def _searched(ops: list[Op], pattern: str | None) -> list[Op]:
    """Returns the operations that match the regular expression of `--grep`.

    An operation matches if the expression is found in its name, origin, node, source line or
    arguments. Raises OptionError for an invalid expression.

    pattern: the option's value; None returns all operations.
    """
    from anchorlib.errors import OptionError

    if pattern is None:
        return ops
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise OptionError(f"--grep {pattern!r} is no regular expression: {error}") from None
    return [op for op in ops if any(map(search, (op.op, op.origin, op.node, op.where, op.args)))]


def _narrowed(screen: Screen) -> Screen:
    """Returns `screen`, but in a pipe, which has no width, with the width that COLUMNS gives.

    So a table is cut to fit in a pipe too if the variable COLUMNS is set.
    """
    return screen if screen.width is not None else replace(screen, width=screen.asked)


def _table(ops: Sequence[Op], screen: Screen) -> Iterator[str]:
    is_shown = {
        "rank": len({op.rank for op in ops}) > 1,
        "origin": any(op.origin for op in ops),
        "kernel": any(op.group is not None for op in ops),
    }
    columns = [column for column in _COLUMNS if is_shown.get(column.title, True)]
    rows = [dict(zip((one.title for one in _COLUMNS), _row(op), strict=True)) for op in ops]
    return written(columns, [[row[one.title] for one in columns] for row in rows], screen)


def _short(name: str) -> str:
    from anchorlib.names import escape

    return escape(name.removeprefix("aten.").removesuffix(".default"))


def _row(op: Op) -> list[str]:
    from anchorlib.names import escape

    made = [shown_shape(one.shape) for one in op.outputs[:_MOST_SHAPES]]
    more = len(op.outputs) - len(made)
    return [
        str(op.step),
        str(op.rank),
        str(op.index),
        escape(op.stage),
        escape(op.module) or "-",
        _short(op.op),
        _short(op.origin),
        "" if op.group is None else str(op.group),
        " ".join([*made, *([f"+{more}"] if more else [])]) or "-",
        escape(op.where) or "-",
        escape(op.args),
    ]
