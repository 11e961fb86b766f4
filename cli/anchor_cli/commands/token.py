"""`anchor token`: makes a token for callers of a collector, with rights to some runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchor_cli.arguments import JsonOption, examples
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import document, emit

__all__ = ["EXAMPLES", "make_token"]

EXAMPLES = examples(
    "anchor token vision --rights read,write --runs 'vision-*' --access access.toml",
    "anchor token dashboard --rights read --runs '*' --access access.toml",
)


def make_token(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The token's name, shown in logs and noted in the runs that the token makes.",
            show_default=False,
        ),
    ],
    *,
    rights: Annotated[
        list[str],
        typer.Option(
            "--rights",
            metavar="RIGHTS",
            help="Some of read, write, replace, delete, with commas between them. With write alone "
            "a token continues and replaces only the runs that it made itself.",
            show_default=False,
        ),
    ],
    runs: Annotated[
        list[str],
        typer.Option(
            "--runs",
            metavar="GLOBS",
            help="The runs that the rights cover, as 'vision-*' or 'a,b'; '*' is all runs.",
            show_default=False,
        ),
    ],
    access: Annotated[
        Path,
        typer.Option(
            "--access",
            metavar="F",
            help="The access file of `anchor serve --access`; it is made where it is missing.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> int:
    """Make a token for a collector with an access file, and show the token this once.

    The file keeps only the token's hash: a lost token cannot be shown again, but a new one can be
    made. To revoke a token, remove its table from the file. A running collector sees a new or
    removed table within two seconds.
    """
    from anchor_server import issue_token

    told_rights, told_runs = _parts(rights), _parts(runs)
    token = issue_token(access, name, told_rights, told_runs)
    if as_json:
        made = {"name": name, "rights": told_rights, "runs": told_runs, "access": str(access)}
        document({**made, "token": token})
    else:
        may = f"{', '.join(told_rights)} {', '.join(told_runs)}"
        emit(f"{name} may {may}; the token, shown this once: {token}")
    return ExitCode.DONE


def _parts(lists: list[str]) -> list[str]:
    """Splits the values of a repeated option at commas and spaces; returns each word once."""
    parts = [part for text in lists for part in text.replace(",", " ").split()]
    return list(dict.fromkeys(parts))
