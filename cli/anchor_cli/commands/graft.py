"""`anchor graft`: a training command run on another run's values, and compared with that run."""

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
        typer.Argument(metavar="-- COMMAND", help="The command whose causes are looked for."),
    ],
    *,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Say which formula each run computed, as compare does."),
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="From which verdict on the exit code is 1.")
    ] = FailOn.SUSPECT,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Run a command while its anchors are handed RUN's values, and list every cause at once.

    Each tensor is recorded as the command made it, as RUN-graft, and then holds what RUN had
    there, bit for bit. So no difference spreads, and each that is left is a cause of its own, also
    those that stand behind another. Eager code only. Exit code as `anchor compare`; 1 where the
    command fails.
    """
    from anchorlib.errors import CommandError
    from anchorlib.graft_runs import graft_run

    try:
        made, place = graft_run(command, run, store, output=_STDERR)
    except CommandError as error:
        note(str(error))
        return ExitCode.DIFFERENCE
    return compare_runs([run, made], replay=replay, fail_on=fail_on, store=place, as_json=as_json)
