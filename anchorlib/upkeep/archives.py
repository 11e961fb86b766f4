"""What became of closed runs: those that are archived, wait for it, or cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.names import escape
from anchorlib.store import note_of, noted_runs, run_directory

if TYPE_CHECKING:
    from anchorlib.wire import KeeperClient

__all__ = ["ArchiveState", "archives_at", "archives_in"]


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """One archive, as the store knows it whose runs go there; None stands for what nobody knows.

    store: the directory or the collector. place: the archive; "" where its collector archives
        nothing now, and did before.
    archived: runs that are there. alone: those of them whose files are nowhere else.
    bytes: sent since the collector was started. waiting: closed runs that are not there yet.
    failing: runs that could not be archived, and why. problem: why none can be now.
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
        """As people read it."""
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
    """The archives that runs of a directory went to, as its notes say. Raises StoreError."""
    notes = [note for run in noted_runs(store) if (note := note_of(store, run)) is not None]
    found = []
    for place in sorted({note.place for note in notes}):
        runs = [note.run for note in notes if note.place == place]
        alone = tuple(run for run in runs if not run_directory(store, run).is_dir())
        found.append(ArchiveState(str(store), place, len(runs), alone))
    return found


def archives_at(client: KeeperClient) -> list[ArchiveState]:
    """What a collector says of its archive, of runs that may be read. Raises CollectorError."""
    told = client.archive()
    if told is None:
        return []
    return [
        ArchiveState(
            str(client.address),
            told.place,
            told.archived,
            tuple(told.alone),
            told.bytes,
            tuple(told.waiting),
            {one.run: one.problem for one in told.failing},
            told.problem,
        )
    ]
