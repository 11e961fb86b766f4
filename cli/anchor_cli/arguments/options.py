"""Options and arguments that several commands share, so that their help text is written once."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from anchor_cli.arguments import complete

__all__ = [
    "DaskOption",
    "JsonOption",
    "RunArgument",
    "StoreOption",
    "TensorOption",
    "a_run",
    "examples",
    "not_empty",
    "several_runs",
    "without_slash",
]


def without_slash(run: str) -> str:
    """Returns a run's URL without a slash at its end, because messages append to the URL.

    Names and paths are returned as they are.
    """
    return run.rstrip("/") if "://" in run else run


def not_empty(text: str | None) -> str | None:
    """Returns an option's value as it is; None stands for an option that is not given.

    Raises BadParameter for an empty value, which mostly comes of an unset variable in the shell.
    """
    if text is not None and not text.strip():
        raise typer.BadParameter("it is empty")
    return text


StoreOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="ANCHOR_STORE",
        metavar="PLACE",
        help="The store of the runs: a directory, grpc://HOST:PORT of a collector "
        "(grpc://A:50051,B:50051 of several), or s3://BUCKET/PREFIX.",
        callback=not_empty,
    ),
]


def a_run(metavar: str, text: str) -> Any:
    """Returns the typer argument for the name of a run.

    metavar: what the help calls the argument. text: the argument's help.
    """
    return typer.Argument(
        metavar=metavar,
        help=text,
        show_default=False,
        autocompletion=complete.run_names,
        callback=without_slash,
    )


def several_runs(metavar: str, text: str) -> Any:
    """Returns the typer argument for the names of one or more runs.

    metavar: what the help calls the argument. text: the argument's help.
    """
    return typer.Argument(
        metavar=metavar,
        help=text,
        show_default=False,
        autocompletion=complete.run_names,
        callback=lambda runs: [without_slash(run) for run in runs],
    )


RunArgument: TypeAlias = Annotated[
    str, a_run("RUN", "A run's name in the store, its path, or grpc://HOST:PORT/NAME.")
]
TensorOption: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--tensor",
        "-t",
        metavar="SEL",
        help="A selector of tensors, as fc2.bias@grad, 'fc*@grad' or Gradient___fc2.bias; may be "
        "repeated.",
        show_default=False,
        autocompletion=complete.selectors,
    ),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document; NaN and infinities become null.")
]


DaskOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Let the workers of a dask cluster read the values: tcp://HOST:PORT of its scheduler. "
        "The answer is the same.",
        callback=not_empty,
        show_default=False,
    ),
]


def examples(*lines: str) -> str:
    """Returns the end of a command's help: these example lines, marked so that none is wrapped."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", head, *(f"  {line}" for line in lines)])
