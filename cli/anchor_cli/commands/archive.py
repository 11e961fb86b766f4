"""`anchor archive`: copies a closed run into an object store, or another directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import (
    JsonOption,
    RunArgument,
    StoreOption,
    examples,
    not_empty,
    parse_keep,
    without_slash,
)
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import Screen, counted, document, emit, size, this_screen

if TYPE_CHECKING:
    from anchorlib.archive import ArchivePlan, ArchiveResult, Keep, Shelf
    from anchorlib.store import ArchiveNote, FoundRun

__all__ = ["EXAMPLES", "archive"]

EXAMPLES = examples(
    "anchor archive run1 --to s3://bucket/prefix",
    "anchor archive run1 --to s3://bucket/prefix --keep-local none",
    "anchor archive run1 --to /mnt/archive --keep-local 30d --dry-run",
    "anchor archive run1 --to s3://bucket/prefix --store grpcs://a:50051,b:50051",
)


def archive(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL|DIR",
            help="The archive: s3://, gs:// or az://BUCKET/PREFIX, or a directory.",
            show_default=False,
            callback=not_empty,
        ),
    ],
    keep_local: Annotated[
        str,
        typer.Option(
            "--keep-local",
            metavar="all|none|SIZE|AGE",
            help="Which archived runs stay on this disk: all, none, the newest up to a size "
            "(500GB), or those of a time (30d). Runs that are not archived always stay.",
        ),
    ] = "all",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    without_conditions: Annotated[
        bool,
        typer.Option(
            "--without-conditional-writes",
            help="Use an object store that cannot refuse to overwrite; then nobody else may "
            "archive there at the same time.",
        ),
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Archive a closed run: seal it into few objects, send them, compare them, mark it complete.

    The command may be interrupted and repeated: objects that are in the archive and fit are not
    sent again. Nothing is removed here before it was verified in the archive. A run of several
    collectors (--store grpc://a,b,c) is archived from all of them. Where an archive has moved, give
    its new place with --to: the store looks there from then on, once all of the run was read there.
    Credentials and endpoint come from the cloud's own variables (AWS_ACCESS_KEY_ID,
    AWS_ENDPOINT_URL and so on).
    """
    from anchorlib.archive import shelf_at
    from anchorlib.store import LocalLocation, archived_alone, find_run
    from anchorlib.upkeep import local_run

    keep = parse_keep(keep_local, "--keep-local")
    shelf = shelf_at(to)
    alone = archived_alone(without_slash(run), store)
    if alone is not None and alone[1].place != shelf.place:
        return _update_archive_place(*alone, shelf, dry_run=dry_run, as_json=as_json)
    stored_run = find_run(run, store)
    if stored_run.archive == shelf.place:
        return _say_done(stored_run.name, stored_run.archive, as_json=as_json)
    is_here = isinstance(stored_run.location, LocalLocation)
    source = _LocalRun(*local_run(stored_run), keep) if is_here else _ServedRun.of(stored_run, keep)
    if dry_run:
        plan, going = source.plan(shelf)
        planned = _plan_document(plan, shelf.place, going)
        document(planned) if as_json else emit(_plan_lines(plan, going, this_screen()))
        return ExitCode.DONE
    done, freed = source.send(shelf, without_conditions=without_conditions)
    if as_json:
        document(_document(done, freed))
    else:
        emit(_lines(done, freed, this_screen()))
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _LocalRun:
    """A run in a local directory, to be archived.

    keep: which archived runs stay in the directory.
    """

    store: Path
    run: str
    keep: Keep

    def plan(self, shelf: Shelf) -> tuple[ArchivePlan, list[str]]:
        """Returns what would be sent to the archive, and the names of the runs removed after that.

        These runs are removed from the local directory, because `keep` does not keep them.

        shelf: the archive, a directory or object store.
        """
        from anchorlib.archive import leaving, plan_archive

        plan = plan_archive(self.store, self.run, shelf)
        return plan, leaving(self.store, shelf.place, self.keep, [self.run])

    def send(
        self, shelf: Shelf, *, without_conditions: bool
    ) -> tuple[ArchiveResult, dict[str, int]]:
        """Archives the run; returns what was sent, and the freed bytes by name of removed run.

        Runs that `keep` does not keep are then removed from the local directory.

        shelf: the archive, a directory or object store.
        without_conditions: also use an object store that cannot refuse to overwrite.
        """
        from anchorlib.archive import archive_run, checked_shelf, make_room

        shelf = checked_shelf(shelf, without_conditions=without_conditions)
        with progress(f"anchor: archiving {self.run}, ranks") as tick:
            done = archive_run(self.store, self.run, shelf, tick)
        return done, make_room(self.store, shelf, self.keep)


@dataclass(frozen=True, slots=True)
class _ServedRun:
    """A run that collectors or another archive hold, to be copied from there into an archive.

    Nothing is changed or removed where the run is read.
    """

    stored_run: FoundRun

    @classmethod
    def of(cls, stored_run: FoundRun, keep: Keep) -> _ServedRun:
        """Checks that the run can be archived, and returns it.

        Raises OptionError where `keep` would remove runs, RunBusyError where the run is being
        written.
        """
        from anchorlib.errors import OptionError, RunBusyError
        from anchorlib.store import ObjectLocation
        from anchorlib.upkeep import keeper_of

        if not keep.is_all:
            raise OptionError(
                f"--keep-local works for a directory, and {stored_run.name} is not in one: a "
                "collector frees its own disk (anchor serve --archive URL --keep-local SIZE)"
            )
        outer = getattr(stored_run.location, "outer", None)
        if not isinstance(outer, ObjectLocation):
            keeper, run = keeper_of(stored_run)
            if any(one.run == run for one in keeper.writings()):
                raise RunBusyError(f"run {run!r} is being written: archive it when that has ended")
        return cls(stored_run)

    def plan(self, shelf: Shelf) -> tuple[ArchivePlan, list[str]]:
        """Returns what would be sent to the archive `shelf`, and [], as no run would be removed."""
        from anchorlib.archive import plan_served

        return plan_served(self.stored_run.location, self.stored_run.name, shelf), []

    def send(
        self, shelf: Shelf, *, without_conditions: bool
    ) -> tuple[ArchiveResult, dict[str, int]]:
        """Archives the run; returns what was sent to `shelf`, and {}, as no run is removed.

        without_conditions: also use an object store that cannot refuse to overwrite.
        """
        from anchorlib.archive import archive_served, checked_shelf

        shelf = checked_shelf(shelf, without_conditions=without_conditions)
        with progress(f"anchor: archiving {self.stored_run.name}, ranks") as tick:
            return archive_served(self.stored_run.location, self.stored_run.name, shelf, tick), {}


def _update_archive_place(
    store: Path, note: ArchiveNote, shelf: Shelf, *, dry_run: bool, as_json: bool
) -> ExitCode:
    """Makes the store find an archived run in an archive that has moved; returns exit code 0.

    All of the run is first read in the new place. Prints that this was done. Raises OptionError
    with `dry_run`, because nothing would be sent.

    note: the store's note of the place where the run was archived.
    shelf: the archive at its new place.
    """
    from anchorlib.archive import update_archive_place
    from anchorlib.errors import OptionError
    from anchorlib.names import escape

    if dry_run:
        raise OptionError(
            f"{note.run} is in {escape(note.place)} alone, and nothing would be sent: without "
            "--dry-run all of it is read in the other place, and the store then finds it there"
        )
    update_archive_place(store, note, shelf)
    if as_json:
        outcome = {"run": note.run, "to": shelf.place, "objects": 0, "sent": 0, "removed": []}
        document({**outcome, "freed": 0})
    else:
        emit(f"{note.run}: read in {escape(shelf.place)}, and found there from now on")
    return ExitCode.DONE


def _say_done(run: str, place: str, *, as_json: bool) -> ExitCode:
    """Prints that there is nothing to do: the run is in the archive alone; returns exit code 0.

    place: the archive's URL or directory.
    """
    if as_json:
        document({"run": run, "to": place, "objects": 0, "sent": 0, "removed": [], "freed": 0})
    else:
        emit([f"{run}: in {place} alone; there is nothing to send"])
    return ExitCode.DONE


def _document(done: ArchiveResult, freed: dict[str, int]) -> dict[str, Any]:
    return {
        "run": done.run,
        "to": done.place,
        "ranks": list(done.ranks),
        "objects": done.objects,
        "sent": done.sent,
        "bytes": done.bytes,
        "removed": list(freed),
        "freed": sum(freed.values()),
    }


def _lines(done: ArchiveResult, freed: dict[str, int], screen: Screen) -> list[str]:
    unit = "" if screen.human else " bytes"
    lines = [
        f"{done.run}: {counted(len(done.ranks), 'rank')} in {done.place}, "
        f"{size(done.bytes, screen)}{unit} in {counted(done.objects, 'object')}, of which "
        f"{done.sent} sent now"
    ]
    for run, nbytes in freed.items():
        lines.append(f"{run}: removed here, {size(nbytes, screen)}{unit} freed")
    return lines


def _plan_document(plan: ArchivePlan, place: str, going: list[str]) -> dict[str, Any]:
    return {
        "run": plan.run,
        "to": place,
        "dry_run": True,
        "ranks": list(plan.ranks),
        "there": list(plan.there),
        "bytes": plan.bytes,
        "removed": going,
    }


def _plan_lines(plan: ArchivePlan, going: list[str], screen: Screen) -> list[str]:
    unit = "" if screen.human else " bytes"
    lines = [
        f"{plan.run}: {counted(len(plan.ranks) - len(plan.there), 'rank')} would be sent, "
        f"{len(plan.there)} are there; {size(plan.bytes, screen)}{unit} of values"
    ]
    return [*lines, *(f"{run}: would be removed here" for run in going)]
