"""`anchor rm`: removes runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import JsonOption, StoreOption, complete, examples, without_slash
from anchor_cli.exits import ExitCode
from anchor_cli.spools import note_spools
from anchor_cli.terminal import Screen, document, emit, note, size, this_screen

if TYPE_CHECKING:
    from pathlib import Path

    from anchorlib.store import ArchiveNote
    from anchorlib.upkeep import Keeper, RemovalStatus

__all__ = ["EXAMPLES", "note_unfinished", "remove_runs"]

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
    """Remove runs, at once and for good.

    All names are looked up first: where one is wrong, nothing is removed. Then come the runs that
    are only in their archive: the store forgets them, and the archive keeps them. The other runs
    are removed one by one. At a run that a living process writes the command ends with an error:
    this run stays, and so do those named after it. A run that is named twice, by its name and by
    its path, is removed once.
    """
    from anchorlib.errors import AnchorError
    from anchorlib.store import archived_alone, find_run
    from anchorlib.upkeep import keeper_of

    asked = dict.fromkeys(without_slash(run) for run in runs)
    noted = [one for run in asked if (one := archived_alone(run, store)) is not None]
    alone = {note.run for _, note in noted}
    keepers = [keeper_of(find_run(run, store)) for run in asked if run not in alone]
    # A name and a path, or two URLs, may mean one run, which can be removed only once.
    kept = {(keeper.place, run): (keeper, run) for keeper, run in keepers}
    done: list[dict[str, Any]] = []
    try:
        for place, note in noted:
            _forget(place, note, done, as_json=as_json)
        for keeper, run in kept.values():
            _remove(keeper, run, done, as_json=as_json)
    except AnchorError:  # the runs that were removed before the error are still listed
        if as_json and done:
            document(done)
        raise
    if as_json:
        document(done)
    return ExitCode.DONE


def _remove(keeper: Keeper, run: str, done: list[dict[str, Any]], *, as_json: bool) -> None:
    known = _standing(keeper, run)
    there = None if known is None or known.alone else known.bytes
    freed = keeper.remove(run, known=known)
    done.append({"run": run, "freed": freed})
    if not as_json:
        emit(_removed_line(run, freed, there, this_screen()))
    note_unfinished(keeper.finish())
    note_spools(run)


def _forget(store: Path, noted: ArchiveNote, done: list[dict[str, Any]], *, as_json: bool) -> None:
    """Makes the store forget a run whose files are in an archive alone.

    Prints that the files stay in the archive, unless `as_json`.

    noted: the store's note of the run and its archive.
    done: the entries of the JSON document; this run's entry is appended.
    """
    from anchorlib.names import escape
    from anchorlib.store import forget_run

    forget_run(store, noted.run)
    done.append({"run": noted.run, "freed": 0, "archive": noted.place})
    if not as_json:
        where = escape(noted.place)
        emit(f"{noted.run}: forgotten here; its objects stay in {where} (--store {where})")


def _standing(keeper: Keeper, run: str) -> RemovalStatus | None:
    """Returns what the store knows of a run that is to be removed; None where it is gone already.

    keeper: gives access to the store, a directory or a collector.
    """
    from anchorlib.errors import RunNotFoundError

    try:
        return keeper.standing(run)
    except RunNotFoundError:
        return None


def _removed_line(run: str, freed: int, there: int | None, screen: Screen) -> str:
    """Returns the line that says that a run was removed.

    freed: bytes that the removal freed. there: bytes of disk that the run took before; 0 for a
    symbolic link, None where the store had no files of it.
    """
    if not freed and there != 0:  # it may have left for its archive after it was measured
        return f"{run}: forgotten; its archive keeps it"
    if there == 0:
        return f"{run}: removed, which was a link; the run that it led to stays"
    unit = "" if screen.human else " bytes"
    return f"{run}: removed, {size(freed, screen)}{unit} freed"


def note_unfinished(finished: tuple[int, list[str]]) -> None:
    """Prints on stderr how many interrupted removals were completed, and why others could not be.

    finished: what `Keeper.finish` returned.
    """
    done, problems = finished
    if done:
        note(f"ended {done} removal{'' if done == 1 else 's'} that had been interrupted")
    for problem in problems:
        note(problem)
