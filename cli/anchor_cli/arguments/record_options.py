"""The options --step, --pass, --call, --rank, --phase and --mode, which select records.

A decorator adds them to a command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from anchor_cli.arguments import complete
from anchor_cli.arguments.record_selection import Selection

__all__ = ["narrowing"]

_STEPS = "Only step A, or steps A to B - 1; -1 is the last step, and -3: the last three steps."
_MODE = "Only this mode, where a tensor was recorded in several."
_OPTIONS: dict[str, Any] = {
    "step": typer.Option("--step", metavar="A[:B]", help=_STEPS),
    "pass_index": typer.Option("--pass", metavar="N", help="Only this pass of each step."),
    "call": typer.Option("--call", metavar="N", help="Only this call of each pass."),
    "rank": typer.Option("--rank", metavar="N", help="Only this rank."),
    "phase": typer.Option(
        "--phase",
        metavar="NAME",
        help="Only this phase, as train or eval.",
        autocompletion=complete.phases,
    ),
    "mode": typer.Option("--mode", metavar="MODE", help=_MODE, autocompletion=complete.modes),
}


def narrowing(command: Callable[..., int]) -> Callable[..., int]:
    """A decorator: returns the command with six options in place of its parameter `selection`.

    The options are --step, --pass, --call, --rank, --phase and --mode. Their values are parsed into
    a Selection, with which the decorated command is then called.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _options() if parameter.name == "selection" else [parameter]

    @wraps(command)
    def run(**given: Any) -> int:
        options = {name: given.pop(name) for name in _OPTIONS}
        return command(**given, selection=Selection.of(**options))

    # typer reads both, the signature and the annotations.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _options() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, option])
        for name, option in _OPTIONS.items()
    ]
