"""`anchor gc`: old runs, and those beyond a number or a size, removed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from anchor_cli.arguments import JsonOption, StoreOption, examples, parse_age, parse_size
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
    from anchorlib.upkeep import Keeper, Limits, RunFacts

__all__ = ["EXAMPLES", "collect"]

EXAMPLES = examples(
    "anchor gc --older-than 30d --dry-run",
    "anchor gc --older-than 30d --keep-last 10",
    "anchor gc --max-size 500GB --store grpc://127.0.0.1:50051",
)

# Refusals that are of one run: others may go nevertheless.
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
            help="Runs to which nothing was written for so long: 30d, 12h, 90m.",
            show_default=False,
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            metavar="N",
            min=0,
            help="The N newest closed runs stay; without another option all other closed runs go.",
            show_default=False,
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="The oldest closed runs, until the rest takes no more: 500GB, 10GiB.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Remove runs of a store by age, number and size.

    Sizes are what a run takes on disk, rows and labels too: `disk`, in bytes. (`anchor runs` says
    how many bytes its values have.) A run is as old as what was last written to it: `written`.

    What a living process writes neither goes nor counts, nor does a link. A run that was never
    closed goes by its age alone: its trainer may come back. Exit code 3 where a run could not be
    read, 4 where a collector refused to remove one: it stays, and the others go.
    """
    from anchorlib.errors import AnchorError
    from anchorlib.upkeep import chosen, keeper_at

    limits = _limits(older_than, keep_last, max_size)
    keeper = keeper_at(store)
    if not dry_run:
        note_unfinished(keeper.finish())
    known, problems = _known(keeper, store)
    going = chosen(known, limits)
    told = _Told(going if dry_run else [], dry_run)
    try:
        for run in () if dry_run else going:
            told.remove(keeper, run, problems)
    except AnchorError:  # a collector refuses: what has gone until then is told nevertheless
        if told.gone:
            told.say(known, as_json=as_json)
        raise
    told.say(known, as_json=as_json)
    for problem in problems:
        note(problem)
    if told.refused:
        return ExitCode.COLLECTOR
    return ExitCode.INCOMPLETE if problems else ExitCode.DONE


@dataclass(slots=True)
class _Told:
    """What goes, or has gone, and how much that frees.

    refused: a collector refused to remove a run.
    """

    gone: list[RunFacts]
    dry: bool
    freed: int = 0
    refused: bool = False

    def remove(self, keeper: Keeper, run: RunFacts, problems: list[str]) -> None:
        """Removes a run, unless it was written to since it was looked at."""
        from anchorlib.errors import CollectorError, RunBusyError, RunNotFoundError, StoreError

        try:
            self.freed += keeper.remove(run.run, unless_after=run.written_ns)
            self.gone.append(run)
        except RunNotFoundError:  # another one was faster
            return
        except CollectorError as error:
            kind = getattr(error, "kind", None)
            if kind not in _OF_A_RUN:
                raise
            self.refused = self.refused or kind != "busy"
            problems.append(f"{run.run} stays: {error}")
        except (RunBusyError, StoreError) as error:  # the others go nevertheless
            problems.append(str(error))

    def say(self, known: Sequence[RunFacts], *, as_json: bool) -> None:
        """Says it on stdout; what is `known` and has not gone stays."""
        if as_json:
            document(self.document([one.run for one in known if one not in self.gone]))
        else:
            emit(self.lines(this_screen()))

    def document(self, stay: Sequence[str]) -> dict[str, Any]:
        """As JSON has it."""
        runs = [
            {"run": one.run, "disk": one.bytes, "written": moment(one.written_ns, Screen())}
            for one in self.gone
        ]
        return {"dry_run": self.dry, "removed": runs, "kept": list(stay), "freed": self._bytes}

    def lines(self, screen: Screen) -> Iterator[str]:
        """As a terminal or a pipe shows it."""
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


def _limits(older_than: str | None, keep_last: int | None, max_size: str | None) -> Limits:
    from anchorlib.errors import OptionError
    from anchorlib.upkeep import Limits

    if older_than is None and keep_last is None and max_size is None:
        raise OptionError("say what goes: --older-than 30d, --keep-last 10 or --max-size 500GB")
    before = None
    if older_than is not None:
        before = time.time_ns() - int(parse_age(older_than, "--older-than") * 1e9)
    most = None if max_size is None else parse_size(max_size, "--max-size")
    return Limits(before, keep_last, most)


def _known(keeper: Keeper, store: str) -> tuple[list[RunFacts], list[str]]:
    """What is known of each run, and which cannot be read."""
    from anchorlib.errors import AnchorError, CollectorError, OptionError, RunNotFoundError
    from anchorlib.store import LocalLocation, has_run, list_runs, locate_store
    from anchorlib.upkeep import read_facts

    known, problems = [], []
    location = locate_store(store)
    for run in list_runs(location):
        try:
            if isinstance(location, LocalLocation) and not has_run(location.root, run):
                continue  # it is in its archive alone, takes no room here, and nobody is asked
            known.append(read_facts(keeper, run, store))
        except CollectorError:
            raise
        except (RunNotFoundError, OptionError):  # removed a moment ago, or in its archive alone
            continue
        except AnchorError as error:
            problems.append(f"{run} cannot be read, and stays: {error}")
    return known, problems
