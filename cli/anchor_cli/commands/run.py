"""`anchor run`: runs a training command and records it; the program needs no edit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from anchor_cli.arguments import StoreOption, examples, not_empty
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import note

__all__ = ["EXAMPLES", "SETTINGS", "run_command"]

EXAMPLES = examples(
    "anchor run -- python train.py --lr 0.1",
    "anchor run --name before --watch 'fc*@grad' -- python train.py",
    "anchor run --watch '*' --steps 0:3 --phases train -- torchrun --nproc-per-node 2 train.py",
)

SETTINGS = {
    "allow_interspersed_args": False
}  # options after COMMAND's first word are the command's own


def run_command(  # noqa: PLR0913  # one parameter for each option
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="The training command with its options."),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="RUN",
            help="The run's name. Default: ANCHOR_RUN, else the job's name, else the script's name "
            "with the time.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(
            "--watch",
            metavar="SEL",
            help="Selector of tensors to record, as 'fc*@grad', or '*' for all; may be repeated. "
            "Default: ANCHOR_WATCH (comma-separated), else every module's output with its gradient "
            "and the gradients that the optimizer consumes.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="M",
            help="What to keep of each tensor: all, sum, final, summary, every_n:10. Default: all.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="A:B",
            help="Which steps to record, as Python's range: 0:3, :100:10, or 0:3,50. Default: all.",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    phases: Annotated[
        str | None,
        typer.Option(
            "--phases",
            metavar="PHASE",
            help="Which phases to record, comma-separated: train,eval. Default: all.",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="A:B",
            help="The steps whose operations are traced, for `anchor ops`. Default: ANCHOR_TRACE, "
            "else none.",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    store: StoreOption = "anchors",
) -> int:
    """Run a training command and record it; the program is not edited.

    In every Python process that the command starts, constructing an optimizer begins to watch the
    models whose parameters it holds. Output, results and exit code stay the command's own.
    """
    from anchorlib.launch import Request, launch, selectors_of_environment

    selectors = tuple(watch or ()) or selectors_of_environment()
    request = Request(
        name=name,
        watch=selectors,
        mode=mode,
        command=(*_program(), *_again(selectors, mode, steps, phases, trace), "--", *command),
    )
    settings = {
        "ANCHOR_STORE": store,
        "ANCHOR_STEPS": steps,
        "ANCHOR_PHASES": phases,
        "ANCHOR_TRACE": trace,
    }
    begun = launch(command, request, {key: text for key, text in settings.items() if text})
    if begun.unseen:
        note(begun.unseen)
    begun.begin()
    return ExitCode.DONE


def _program() -> list[str]:
    """Returns the words of a command line that start `anchor run` again, without its options.

    They are `anchor run` where the shell finds this installation under the name `anchor`, else
    `PYTHON -m anchor_cli run` with the path of this Python.
    """
    program = shutil.which("anchor")
    if program is not None and Path(program).resolve() == Path(sys.argv[0]).resolve():
        return ["anchor", "run"]
    return [sys.executable, "-m", "anchor_cli", "run"]


def _again(
    watch: tuple[str, ...],
    mode: str | None,
    steps: str | None,
    phases: str | None,
    trace: str | None,
) -> list[str]:
    """Returns the given options as words of a command line, by which the run can be rerun later.

    Name and store are left out, because a rerun, such as `anchor noise` makes, sets its own.
    """
    options = [("--watch", text) for text in watch]
    options += [("--mode", mode or ""), ("--steps", steps or ""), ("--phases", phases or "")]
    options += [("--trace", trace or "")]
    return [word for option, text in options if text for word in (option, text)]
