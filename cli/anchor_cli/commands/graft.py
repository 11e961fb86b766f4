"""`anchor graft`: runs a training command on another run's values, and compares the two."""

from __future__ import annotations

from typing import Annotated

import typer

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.commands.compare import FailOn, compare_runs
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import note

__all__ = ["EXAMPLES", "make_graft"]

EXAMPLES = examples(
    "anchor graft eager -- python train.py --compile",
    "anchor graft before -- anchor run --watch '*' -- python train.py",
)

_STDERR = 2  # the command's own output is not the answer of `anchor graft`


def make_graft(
    run: RunArgument,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="The training command that differs from RUN."),
    ],
    *,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Say which formula each run computed, as `anchor compare --replay`."
        ),
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="The mildest verdict that gives exit code 1.")
    ] = FailOn.SUSPECT,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Run a command on RUN's values, and list every cause of a difference at once.

    Each watched tensor is recorded in RUN-graft as the command computed it, and then replaced, bit
    for bit, by RUN's value. So no difference spreads: each difference in RUN-graft is a cause of
    its own, even where an earlier one would have hidden it. Works for eager code only. The exit
    code is that of `anchor compare`, or 1 where the command fails.
    """
    from anchorlib.errors import CommandError
    from anchorlib.graft_runs import graft_run

    try:
        made, place = graft_run(command, run, store, output=_STDERR)
    except CommandError as error:
        note(str(error))
        return ExitCode.DIFFERENCE
    return compare_runs([run, made], replay=replay, fail_on=fail_on, store=place, as_json=as_json)
