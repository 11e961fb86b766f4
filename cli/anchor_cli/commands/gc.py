"""`anchor gc`: removes old runs, and runs beyond a number or a size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from anchor_cli.arguments import JsonOption, StoreOption, examples, parse_age, parse_most
from anchor_cli.commands.rm import note_unfinished
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import (
    Column,
    Screen,
    age,
    counted,
    document,
    emit,
    moment,
    note,
    size,
    this_screen,
    written,
)

if TYPE_CHECKING:
    from anchorlib.upkeep import Keeper, RetentionLimits, RunFacts

__all__ = ["EXAMPLES", "collect"]

EXAMPLES = examples(
    "anchor gc --older-than 30d --dry-run",
    "anchor gc --older-than 30d --keep-last 10",
    "anchor gc --max-size 500GB --store grpc://127.0.0.1:50051",
)

# Refusals that concern a single run: other runs can still be removed.
_OF_A_RUN: Final = frozenset({"busy", "forbidden", "store", "inodes", "disk"})

_COLUMNS = [
    Column("name", cut=True, main=True),
    Column("state"),
    Column("disk", right=True),
    Column("written", spare=1),
]


def collect(
    *,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Remove runs to which nothing was written for so long: 30d, 12h, 90m.",
            show_default=False,
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            metavar="N",
            min=0,
            help="Keep the N newest closed runs; without another option all other closed runs are "
            "removed.",
            show_default=False,
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="Remove the oldest closed runs until the rest takes no more than this: 500GB, "
            "10GiB.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which runs would be removed, and remove nothing.")
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Remove runs of a store by age, number and size.

    The size of a run is what it takes on disk, with tables and metadata: the column disk. (`anchor
    runs` shows the bytes of its values.) The age of a run is the time since its last record: the
    column written.

    Runs that a living process writes are neither removed nor counted; nor are symbolic links to
    runs. A run that was never closed is removed only by its age, because its trainer may come back.
    Exit code 3 where a run could not be read, 4 where a collector refused to remove a run: that run
    stays, and the other chosen runs are removed.
    """
    from anchorlib.errors import AnchorError
    from anchorlib.upkeep import chosen, keeper_at

    limits = _limits(older_than, keep_last, max_size)
    keeper = keeper_at(store)
    if not dry_run:
        note_unfinished(keeper.finish())
    known, problems = _known(keeper, store)
    going = chosen(known, limits)
    removals = _Removals(going if dry_run else [], dry_run)
    try:
        for run in () if dry_run else going:
            removals.remove(keeper, run, problems)
    except AnchorError:  # a collector refuses: the runs that were removed before are still listed
        if removals.gone:
            removals.say(known, as_json=as_json)
        raise
    removals.say(known, as_json=as_json)
    for problem in problems:
        note(problem)
    if removals.refused:
        return ExitCode.COLLECTOR
    return ExitCode.INCOMPLETE if problems else ExitCode.DONE


@dataclass(slots=True)
class _Removals:
    """Removes runs, and collects what is printed about it.

    gone: the runs that were removed, or with `--dry-run` would be.
    dry: whether --dry-run is given; the caller then fills `gone` and removes nothing.
    freed: bytes that the removals freed.
    refused: whether a collector refused to remove a run, or removed only a part of it.
    """

    gone: list[RunFacts]
    dry: bool
    freed: int = 0
    refused: bool = False

    def remove(self, keeper: Keeper, run: RunFacts, problems: list[str]) -> None:
        """Removes a run, unless records were written to it since its age was read.

        Where the run cannot be removed, appends the reason to `problems`. A run that is gone by
        now, or is in its archive alone, is passed over. Raises CollectorError for an error that
        does not concern this run alone, such as a collector that does not answer.
        """
        from anchorlib.errors import (
            CollectorError,
            OptionError,
            RunBusyError,
            RunNotFoundError,
            StoreError,
        )
        from anchorlib.upkeep import PartlyChangedError

        try:
            self.freed += keeper.remove(run.run, unless_after=run.written_ns)
            self.gone.append(run)
        except (RunNotFoundError, OptionError):  # removed meanwhile, or left for its archive
            return
        except PartlyChangedError as error:
            self.freed += error.freed
            self.refused = True
            problems.append(str(error))
        except CollectorError as error:
            kind = getattr(error, "kind", None)
            if kind not in _OF_A_RUN:
                raise
            self.refused = self.refused or kind != "busy"
            problems.append(f"{run.run} stays: {error}")
        except (RunBusyError, StoreError) as error:  # the other runs are still removed
            problems.append(str(error))

    def say(self, known: Sequence[RunFacts], *, as_json: bool) -> None:
        """Prints the removed runs on stdout; the JSON document also lists the runs that stay.

        known: all runs of the store that could be read.
        """
        if as_json:
            document(self.document([one.run for one in known if one not in self.gone]))
        else:
            emit(self.lines(this_screen()))

    def document(self, stay: Sequence[str]) -> dict[str, Any]:
        """Returns the dict that --json prints, with `stay`, the names of the runs that stay."""
        runs = [
            {"run": one.run, "disk": one.bytes, "written": moment(one.written_ns, Screen())}
            for one in self.gone
        ]
        return {"dry_run": self.dry, "removed": runs, "kept": list(stay), "freed": self._bytes}

    def lines(self, screen: Screen) -> Iterator[str]:
        """Yields the lines to print: a table of the removed runs, their number and freed bytes."""
        rows = [
            [
                one.run,
                "closed" if one.closed else "open",
                size(one.bytes, screen),
                age(one.written_ns, screen),
            ]
            for one in self.gone
        ]
        if rows:
            yield from written(_COLUMNS, rows, screen)
        unit = "" if screen.human else " bytes"
        done = "would be removed" if self.dry else "removed"
        yield f"{counted(len(rows), 'run')} {done}, {size(self._bytes, screen)}{unit} freed"

    @property
    def _bytes(self) -> int:
        return sum(one.bytes for one in self.gone) if self.dry else self.freed


def _limits(older_than: str | None, keep_last: int | None, max_size: str | None) -> RetentionLimits:
    from anchorlib.errors import OptionError
    from anchorlib.upkeep import RetentionLimits

    if older_than is None and keep_last is None and max_size is None:
        raise OptionError(
            "say which runs to remove: --older-than 30d, --keep-last 10 or --max-size 500GB"
        )
    before = None
    if older_than is not None:
        before = time.time_ns() - int(parse_age(older_than, "--older-than") * 1e9)
    most = None if max_size is None else parse_most(max_size, "--max-size")
    return RetentionLimits(before, keep_last, most)


def _known(keeper: Keeper, store: str) -> tuple[list[RunFacts], list[str]]:
    """Reads age and size of each run in a store; returns them, and a line for each unreadable run.

    Runs whose files are in an archive alone are left out, since they take no room in the store.
    """
    from anchorlib.errors import AnchorError, CollectorError, OptionError, RunNotFoundError
    from anchorlib.store import LocalLocation, has_run, list_runs, locate_store
    from anchorlib.upkeep import read_facts

    known, problems = [], []
    location = locate_store(store)
    for run in list_runs(location):
        try:
            if isinstance(location, LocalLocation) and not has_run(location.root, run):
                continue  # only in its archive: it takes no room here
            known.append(read_facts(keeper, run, store))
        except CollectorError:
            raise
        except (RunNotFoundError, OptionError):  # removed a moment ago, or in its archive alone
            continue
        except AnchorError as error:
            problems.append(f"{run} cannot be read, and stays: {error}")
    return known, problems
