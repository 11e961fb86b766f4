"""`anchor rm`: runs removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import JsonOption, StoreOption, complete, examples, without_slash
from anchor_cli.exits import ExitCode
from anchor_cli.spools import note_spools
from anchor_cli.terminal import Screen, document, emit, note, size, this_screen

if TYPE_CHECKING:
    from anchorlib.upkeep import Keeper

__all__ = ["EXAMPLES", "freed_line", "note_unfinished", "remove_runs"]

EXAMPLES = examples("anchor rm run1", "anchor rm noise0 noise1 --store grpc://127.0.0.1:50051")


def remove_runs(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A run's name in the store, its path, or grpc://HOST:PORT/NAME.",
            show_default=False,
            autocompletion=complete.run_names,
        ),
    ],
    *,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Remove runs, at once and for good; a run that a living process writes stays.

    All names are looked up first: where one is wrong, nothing is removed.
    """
    from anchorlib.errors import AnchorError
    from anchorlib.store import find_run
    from anchorlib.upkeep import keeper_of

    asked = dict.fromkeys(without_slash(run) for run in runs)
    found = [keeper_of(find_run(run, store)) for run in asked]
    done: list[dict[str, Any]] = []
    try:
        for keeper, run in found:
            _remove(keeper, run, done, as_json=as_json)
    except AnchorError:  # what has gone until then is told nevertheless
        if as_json and done:
            document(done)
        raise
    if as_json:
        document(done)
    return ExitCode.DONE


def _remove(keeper: Keeper, run: str, done: list[dict[str, Any]], *, as_json: bool) -> None:
    freed = keeper.remove(run)
    done.append({"run": run, "freed": freed})
    if not as_json:
        emit(freed_line(run, freed, this_screen()))
    note_unfinished(keeper.finish())
    note_spools(run)


def freed_line(run: str, freed: int, screen: Screen) -> str:
    """What became of a run, in a line."""
    unit = "" if screen.human else " bytes"
    return f"{run}: removed, {size(freed, screen)}{unit} freed"


def note_unfinished(finished: tuple[int, list[str]]) -> None:
    """Says what of interrupted removals was ended, or cannot be."""
    done, problems = finished
    if done:
        note(f"ended {done} removal{'' if done == 1 else 's'} that had been interrupted")
    for problem in problems:
        note(problem)
