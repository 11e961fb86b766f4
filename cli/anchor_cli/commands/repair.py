"""`anchor repair`: repairs a damaged run, or copies its undamaged rows into a new run.

A run is repaired in place where the rows of its tables are intact, so that its metadata and labels
(the step, pass and call that are stored beside values) can be made anew from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.commands.rm import note_unfinished
from anchor_cli.progress import progress
from anchor_cli.terminal import counted, document, emit, this_screen
from anchor_cli.verification import verified

if TYPE_CHECKING:
    from anchorlib.store import FoundRun
    from anchorlib.upkeep import Examined

__all__ = ["EXAMPLES", "repair_run"]

EXAMPLES = examples(
    "anchor repair run1 --dry-run",
    "anchor repair run1",
    "anchor repair run1 --as run1-sound",
    "anchor repair run1 --drop-rank 3",
)


def repair_run(
    run: RunArgument,
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Write all sound rows into a new run of this name; RUN stays as it is.",
            show_default=False,
        ),
    ] = None,
    drop_rank: Annotated[
        list[int] | None,
        typer.Option(
            "--drop-rank",
            metavar="N",
            min=0,
            help="Remove this rank (with --as: leave it out); may be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Repair a damaged run: make its metadata anew, or copy its sound records into a new run.

    A rank whose records are sound (as their checksums say) gets new metadata and labels (the step,
    pass and call beside each value). A rank with a damaged record is not changed: --as NAME copies
    the sound records into a new run. Interrupted removals of runs are completed. The exit code is
    that of `anchor verify` for the run as it is afterwards.
    """
    from anchorlib.names import check_run_name
    from anchorlib.store import find_run
    from anchorlib.upkeep import local_run

    stored_run = find_run(run, store)
    place, known = local_run(stored_run)
    _check_whole(stored_run)
    if name is not None:
        check_run_name(name)
    work = _Repair(stored_run, place, known, name, dry_run, sorted(set(drop_rank or ())))
    work.finish()
    work.drop()
    with progress(f"looking at {known}") as tick:
        work.mend(tick)
    if not as_json:
        emit(work.lines())
    result = find_run(name, place) if name is not None and work.made else stored_run
    with progress(f"verifying {result.name}") as tick:
        report = verified(result, tick)
    if as_json:
        document({**work.as_json(), "verify": report.as_json()})
    else:
        emit(report.lines(this_screen()))
    return report.code


def _check_whole(stored_run: FoundRun) -> None:
    """Raises OptionError for a run whose ranks lie in parts, because several collectors took them.

    A repaired part would no longer fit the other parts.
    """
    from anchorlib.errors import OptionError
    from anchorlib.store import listed_parts

    if any(part for _, part in listed_parts(stored_run.location)):
        raise OptionError(
            f"{stored_run.name} has ranks in parts, of several collectors: join the parts first "
            f"(anchor push {stored_run.name} --to DIR), and repair that run"
        )


@dataclass(slots=True)
class _Rank:
    """The result of examining and repairing one rank.

    rows: how many rows (records) the rank has.
    lost: how many rows are damaged beyond use.
    bare: how many other rows lost their values and keep only their summary.
    remade: how many files of metadata and labels were made again; --dry-run and --as only count.
    problems: other damage, in words.
    damaged: whether any damage was found that cannot be repaired in place.
    """

    rank: int
    rows: int = 0
    lost: int = 0
    bare: int = 0
    remade: int = 0
    problems: list[str] = field(default_factory=list)
    damaged: bool = False

    def line(self, work: _Repair) -> str:
        """Returns the line that is printed about this rank."""
        from anchorlib.names import escape

        about = f"rank {self.rank}: "
        if self.damaged:
            clauses = [*map(escape, self.problems)]
            if self.lost:
                clauses.append(f"{self.lost} of {counted(self.rows, 'row')} are lost")
            if self.bare:
                clauses.append(f"{counted(self.bare, 'record')} lost the values, not the summary")
            return f"{about}{'; '.join(clauses)}{work.advice(self)}"
        if self.remade and work.name is None:
            done = "would be made again" if work.dry else "made again"
            what = "of its metadata and labels"
            return f"{about}all rows are sound; {counted(self.remade, 'file')} {what} {done}"
        return f"{about}{counted(self.rows, 'row')}, all sound"


@dataclass(slots=True)
class _Repair:
    """One execution of the command: its options, and the results so far.

    run, store: the damaged run's name, and the store that holds the run.
    name: the new run's name (--as); None repairs in place.
    dry: whether --dry-run is given. dropped: the ranks of --drop-rank.
    ended: how many interrupted removals were completed, or with --dry-run would be.
    ranks: the results, one for each rank that was examined. made: whether the new run was made.
    """

    stored_run: FoundRun
    store: Path
    run: str
    name: str | None
    dry: bool
    dropped: Sequence[int]
    ended: int = 0
    ranks: list[_Rank] = field(default_factory=list)
    made: bool = False

    def finish(self) -> None:
        """Completes interrupted removals of runs of the store, and sets `ended` to their number.

        Prints on stderr how many were completed, and why any could not be. With `--dry-run` it only
        counts the removals that are to be completed.
        """
        from anchorlib.store import finish_removals, waiting_removals

        if self.dry:
            self.ended = len(waiting_removals(self.store))
            return
        finished = finish_removals(self.store)
        self.ended = finished[0]
        note_unfinished(finished)

    def drop(self) -> None:
        """Removes the ranks of `--drop-rank` from the run.

        Nothing is removed with --dry-run, or with --as: `mend` leaves these ranks out of the new
        run. Raises RunNotFoundError for a rank that the run has not, OptionError where no rank
        would be left.
        """
        from anchorlib.errors import OptionError, RunNotFoundError
        from anchorlib.store import remove_rank

        there = self._listed()
        for rank in self.dropped:
            if rank not in there:
                raise RunNotFoundError(f"run {self.run!r} has no rank {rank}")
        if self.dropped and not set(there) - set(self.dropped):
            raise OptionError(
                f"these are all ranks of the run: remove the run (anchor rm {self.run})"
            )
        for rank in () if self.dry or self.name else self.dropped:
            remove_rank(self.store, self.run, rank)

    def mend(self, tick: Any) -> None:
        """Examines each rank and repairs it; with `--as` writes the sound rows into the new run.

        With --dry-run ranks are only examined. The results go to `ranks`. Damage is not raised;
        raises RunBusyError where a process writes the run.

        tick: called with how many values of a rank were examined so far, and how many it has.
        """
        from anchorlib.errors import AnchorError, RunBusyError
        from anchorlib.upkeep import Examined, salvage

        sound: list[Examined] = []
        for rank in [one for one in self._listed() if one not in self.dropped]:
            state = _Rank(rank)
            self.ranks.append(state)
            try:
                with self._held(rank):
                    one = Examined.of(self.stored_run.location, self.run, rank, tick)
                    sound.append(one)
                    self._tell(state, one)
            except RunBusyError:
                raise
            except AnchorError as error:
                state.damaged = True
                state.problems.append(str(error))
        if self.name is not None and not self.dry:
            self.made = salvage(self.store, sound, self.name)

    @contextmanager
    def _held(self, rank: int) -> Iterator[None]:
        """A context that holds the rank's lock, unless the rank is only read (--as, --dry-run)."""
        from anchorlib.store import RankLock

        if self.name is not None or self.dry:
            yield
            return
        lock = RankLock.take(self.store, self.run, rank)
        try:
            yield
        finally:
            lock.release()

    def _tell(self, state: _Rank, one: Examined) -> None:
        from anchorlib.store import republish, unpublished

        state.rows = len(one.sound)
        state.lost, state.bare = one.lost
        state.problems = one.problems
        state.damaged = not one.is_sound
        if state.damaged or one.reader.is_sealed or one.reader.catalogue.version == 1:
            return
        if self.dry or self.name is not None:
            state.remade = len(list(unpublished(self.stored_run.location, one.reader)))
        else:
            state.remade = republish(self.store, self.run, one.reader)

    def _listed(self) -> list[int]:
        from anchorlib.store import listed_ranks

        return listed_ranks(self.stored_run.location)

    def advice(self, rank: _Rank) -> str:
        """Returns the end of the line about a damaged rank: what to do about the damage.

        With --as it says instead that the sound rows are in the new run, and is "" for a rank
        without a sound row.
        """
        if self.name is not None:
            done = "would be" if self.dry else "are"
            return f"; the sound rows {done} in {self.name}" if rank.rows > rank.lost else ""
        return f"; `anchor repair {self.run} --as NAME` records its sound rows once more"

    def lines(self) -> Iterator[str]:
        """Yields the lines to print: interrupted removals, dropped ranks, then a line a rank."""
        if self.ended and self.dry:
            yield f"{counted(self.ended, 'interrupted removal')} would be ended"
        for rank in self.dropped:
            done = "left out" if self.name is not None else "removed"
            yield f"rank {rank}: {f'would be {done}' if self.dry else done}"
        yield from (one.line(self) for one in self.ranks)
        if self.name is not None and not (self.made or self.dry):
            yield f"no sound row is left: no run {self.name} was made"

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON document, without the result of verifying the run afterwards."""
        return {
            "run": self.run,
            "as": self.name,
            "dry_run": self.dry,
            "removals_ended": self.ended,
            "dropped": list(self.dropped),
            "ranks": [asdict(one) for one in self.ranks],
        }
