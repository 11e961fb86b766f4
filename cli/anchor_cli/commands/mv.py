"""`anchor mv`: renames a run."""

from __future__ import annotations

from typing import Annotated

import typer

from anchor_cli.arguments import JsonOption, StoreOption, a_run, examples
from anchor_cli.exits import ExitCode
from anchor_cli.spools import note_spools
from anchor_cli.terminal import document, emit

__all__ = ["EXAMPLES", "rename"]

EXAMPLES = examples("anchor mv run1 baseline", "anchor mv grpc://127.0.0.1:50051/run1 baseline")


def rename(
    old: Annotated[str, a_run("OLD", "The run: its name, its path, or grpc://HOST:PORT/NAME.")],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW", help="The run's new name, in the same store.", show_default=False
        ),
    ],
    *,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Rename a run in its store; a run that a living process writes cannot be renamed.

    Exit code 2 where the name is taken or invalid (4 where a collector says so).
    """
    from anchorlib.names import check_run_name
    from anchorlib.store import find_run
    from anchorlib.upkeep import keeper_of

    check_run_name(new)
    keeper, run = keeper_of(find_run(old, store))
    keeper.rename(run, new)
    if as_json:
        document({"run": run, "name": new})
    else:
        emit(f"{run} is now {new}")
    note_spools(run, new)
    return ExitCode.DONE
