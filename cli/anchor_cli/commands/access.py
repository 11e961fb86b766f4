"""`anchor token`: who may call a collector, and what for."""

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
            help="Whose it is: it stands in logs, and in the runs that the token makes.",
            show_default=False,
        ),
    ],
    *,
    rights: Annotated[
        list[str],
        typer.Option(
            "--rights",
            metavar="RIGHTS",
            help="Out of read, write, replace, delete: a list with commas. With write alone, a "
            "token continues and replaces what it wrote itself.",
            show_default=False,
        ),
    ],
    runs: Annotated[
        list[str],
        typer.Option(
            "--runs",
            metavar="GLOBS",
            help="The runs that it is for, as 'vision-*' or 'a,b'; '*' is all of them.",
            show_default=False,
        ),
    ],
    access: Annotated[
        Path,
        typer.Option(
            "--access",
            metavar="F",
            help="The access file of `anchor serve --access`, made if need be.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> int:
    """Make a token for a collector with an access file, and show it this once.

    The file keeps the token's hash alone: whoever loses the token needs another. To revoke it,
    remove its table from the file; a collector that serves sees both within two seconds.
    """
    from anchor_server import issue_token

    told_rights, told_runs = _parts(rights), _parts(runs)
    token = issue_token(access, name, told_rights, told_runs)
    if as_json:
        told = {"name": name, "rights": told_rights, "runs": told_runs, "access": str(access)}
        document({**told, "token": token})
    else:
        may = f"{', '.join(told_rights)} {', '.join(told_runs)}"
        emit(f"{name} may {may}; the token, shown this once: {token}")
    return ExitCode.DONE


def _parts(lists: list[str]) -> list[str]:
    """The parts of lists with commas or spaces, each once."""
    parts = [part for text in lists for part in text.replace(",", " ").split()]
    return list(dict.fromkeys(parts))
