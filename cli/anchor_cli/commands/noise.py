"""`anchor noise`: runs a training command several times, each with slightly changed parameters."""

from __future__ import annotations

from typing import Annotated

import typer

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import document, emit, note

__all__ = ["EXAMPLES", "make_noise"]

EXAMPLES = examples(
    "anchor noise eager -- python train.py --lr 0.1",
    "anchor noise eager --runs 5 --eps bfloat16",
)

_STDERR = 2  # the command's own output is not the answer of `anchor noise`


def make_noise(
    run: RunArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="The command that recorded RUN. Default: the command in RUN's header.",
            show_default=False,
        ),
    ] = None,
    *,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", help="How many reruns to make.", min=1)
    ] = 3,
    eps: Annotated[
        str | None,
        typer.Option(
            "--eps",
            metavar="E",
            help="The relative change of each parameter: a number, or a dtype's name for its "
            "epsilon. Default: the epsilon of the coarsest dtype that RUN computed in.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Run a command again with perturbed parameters, to see how far rounding alone drifts.

    Each time the parameters of every watched model are multiplied by 1 plus or minus E, with random
    signs. The recordings are named RUN-noise1, RUN-noise2 and so on, and replace earlier runs of
    these names. `anchor compare RUN OTHER --noise RUN-noise1 ...` judges the drift of OTHER by
    them. Exit code 1 where the command fails.
    """
    from anchorlib.errors import CommandError
    from anchorlib.noise_runs import compare_line, noise

    try:
        made = noise(command, run, runs, store, eps=eps, output=_STDERR)
    except CommandError as error:
        note(str(error))
        return ExitCode.DIFFERENCE
    line = compare_line(run, made, store=None if store == "anchors" else store)
    if as_json:
        document({"run": run, "noise": made, "compare": line})
    else:
        emit([*made, line])
    return ExitCode.DONE
