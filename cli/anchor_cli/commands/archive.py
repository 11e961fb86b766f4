"""`anchor archive`: a closed run into an object store, or another directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import (
    JsonOption,
    RunArgument,
    StoreOption,
    examples,
    not_empty,
    parse_keep,
)
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import Screen, counted, document, emit, size, this_screen

if TYPE_CHECKING:
    from anchorlib.archive import Archived, Planned

__all__ = ["EXAMPLES", "archive"]

EXAMPLES = examples(
    "anchor archive run1 --to s3://bucket/prefix",
    "anchor archive run1 --to s3://bucket/prefix --keep-local none",
    "anchor archive run1 --to /mnt/archive --keep-local 30d --dry-run",
)


def archive(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL|DIR",
            help="Where it goes: s3://, gs:// or az://BUCKET/PREFIX, or a directory.",
            show_default=False,
            callback=not_empty,
        ),
    ],
    keep_local: Annotated[
        str,
        typer.Option(
            "--keep-local",
            metavar="all|none|SIZE|AGE",
            help="What of archived runs stays here: all, none, the newest up to 500GB, or those of "
            "the last 30d. What is not archived stays always.",
        ),
    ] = "all",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")
    ] = False,
    without_conditions: Annotated[
        bool,
        typer.Option(
            "--without-conditional-writes",
            help="Use a store that cannot refuse to overwrite; then nobody else may archive there.",
        ),
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Archive a closed run: sealed into few objects, sent, compared, and marked as whole.

    May be interrupted and repeated: what is there and fits is not sent again. Nothing is removed
    here before the archive was seen to have it. Credentials and endpoint come from the cloud's own
    variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on).
    """
    from anchorlib.archive import (
        archive_run,
        checked_shelf,
        leaving,
        make_room,
        plan_archive,
        shelf_at,
    )
    from anchorlib.store import find_run
    from anchorlib.upkeep import local_run

    keep = parse_keep(keep_local, "--keep-local")
    found, shelf = find_run(run, store), shelf_at(to)
    if found.archive == shelf.place:
        return _say_done(found.name, found.archive, as_json=as_json)
    directory, name = local_run(found)
    if dry_run:
        plan = plan_archive(directory, name, shelf)
        going = leaving(directory, shelf.place, keep, [name])
        told = _plan_document(plan, shelf.place, going)
        document(told) if as_json else emit(_plan_lines(plan, going, this_screen()))
        return ExitCode.DONE
    shelf = checked_shelf(shelf, without_conditions=without_conditions)
    with progress(f"anchor: archiving {name}, ranks") as tick:
        done = archive_run(directory, name, shelf, tick)
    freed = make_room(directory, shelf, keep)
    if as_json:
        document(_document(done, freed))
    else:
        emit(_lines(done, freed, this_screen()))
    return ExitCode.DONE


def _say_done(run: str, place: str, *, as_json: bool) -> ExitCode:
    """That a run is in this archive, and no longer here: an earlier call has done it all."""
    if as_json:
        document({"run": run, "to": place, "objects": 0, "sent": 0, "removed": [], "freed": 0})
    else:
        emit([f"{run}: in {place} alone; there is nothing to send"])
    return ExitCode.DONE


def _document(done: Archived, freed: dict[str, int]) -> dict[str, Any]:
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


def _lines(done: Archived, freed: dict[str, int], screen: Screen) -> list[str]:
    unit = "" if screen.human else " bytes"
    lines = [
        f"{done.run}: {counted(len(done.ranks), 'rank')} in {done.place}, "
        f"{size(done.bytes, screen)}{unit} in {counted(done.objects, 'object')}, of which "
        f"{done.sent} sent now"
    ]
    for run, nbytes in freed.items():
        lines.append(f"{run}: removed here, {size(nbytes, screen)}{unit} freed")
    return lines


def _plan_document(plan: Planned, place: str, going: list[str]) -> dict[str, Any]:
    return {
        "run": plan.run,
        "to": place,
        "dry_run": True,
        "ranks": list(plan.ranks),
        "there": list(plan.there),
        "bytes": plan.bytes,
        "removed": going,
    }


def _plan_lines(plan: Planned, going: list[str], screen: Screen) -> list[str]:
    unit = "" if screen.human else " bytes"
    lines = [
        f"{plan.run}: {counted(len(plan.ranks) - len(plan.there), 'rank')} would be sent, "
        f"{len(plan.there)} are there; {size(plan.bytes, screen)}{unit} of values"
    ]
    return [*lines, *(f"{run}: would be removed here" for run in going)]
