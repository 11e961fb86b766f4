"""Which closed runs of a store are archived, wait to be, or cannot be, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store import note_of, noted_runs, run_directory

if TYPE_CHECKING:
    from anchorlib.wire import KeeperClient

__all__ = ["ArchiveState", "alone_in", "archives_at", "archives_in"]


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What a store (a directory or a collector) knows of one archive that its runs went to.

    store: the path of the directory, or the address of the collector. place: the archive's
        directory or URL. It is "" for a collector that has archived runs and archives none now. It
        is "" also in the state that lists, in `failing`, the runs of a directory whose notes on
        their archive are damaged.
    archived: how many runs are archived. alone: the names of the archived runs whose files the
        store no longer has. bytes: how many bytes were sent to the archive since the collector
        started; None for a directory.
    waiting: the names of closed runs that are not archived yet; None for a directory. failing: the
        reason for each run that could not be archived, by the run's name.
    problem: why no run can be archived now; "" where there is no problem.
    """

    store: str
    place: str
    archived: int
    alone: tuple[str, ...]
    bytes: int | None = None
    waiting: tuple[str, ...] | None = None
    failing: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the state in English, a line for each fact, as `anchor status` prints it."""
        be = "run is" if self.archived == 1 else "runs are"
        where = f" in {escape(self.place)}" if self.place else ""
        here = self.archived - len(self.alone)
        too = f"{here} of them {'is' if here == 1 else 'are'} here too"
        waits = f"; {len(self.waiting)} wait" if self.waiting else ""
        yield f"{self.archived} {be} archived{where}, {too}{waits}"
        for run, why in self.failing.items():
            yield f"{escape(run)} is not archived: {escape(why)}"
        if self.problem:
            yield f"nothing is archived now: {escape(self.problem)}"


def archives_in(store: Path) -> list[ArchiveState]:
    """Return the state of each archive that runs of a directory went to.

    The states are read from the notes that `anchor archive` leaves in the directory, one for each
    archived run; the archives are not asked. A run whose note is damaged is in `failing` of a state
    of its own, the first, which has no `place`.
    """
    notes, damaged = [], {}
    for run in noted_runs(store):
        try:
            note = note_of(store, run)
        except StoreError as error:
            damaged[run] = str(error)
            continue
        if note is not None:
            notes.append(note)
    states = [ArchiveState(str(store), "", 0, (), failing=damaged)] if damaged else []
    for place in sorted({note.place for note in notes}):
        runs = [note.run for note in notes if note.place == place]
        alone = tuple(run for run in runs if not run_directory(store, run).is_dir())
        states.append(ArchiveState(str(store), place, len(runs), alone))
    return states


def archives_at(client: KeeperClient) -> list[ArchiveState]:
    """Return the state of a collector's archive, as the collector tells it, in a list.

    The list is empty if the collector archives no runs and has none in an archive. The state counts
    only runs that the client may read. Raises CollectorError where the collector refuses or cannot
    be reached.
    """
    answer = client.archive()
    if answer is None:
        return []
    return [
        ArchiveState(
            str(client.address),
            answer.place,
            answer.archived,
            tuple(answer.alone),
            answer.bytes,
            tuple(answer.waiting),
            {one.run: one.problem for one in answer.failing},
            answer.problem,
        )
    ]


def alone_in(archives: Iterable[ArchiveState]) -> dict[str, str]:
    """Return the archive of each run whose files the store no longer has, by the run's name.

    An archive is given by its address, or as "its archive" where the address is not known.
    archives: the states of the store's archives.
    """
    return {run: one.place or "its archive" for one in archives for run in one.alone}
