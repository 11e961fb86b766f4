"""A run as readers find it: its ranks, each read when it is first asked for."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import RunNotFoundError
from anchorlib.names import escape
from anchorlib.store.layout import rank_of
from anchorlib.store.location import LocalLocation, Location
from anchorlib.store.lock import is_locked, lock_path
from anchorlib.store.rank import RankReader
from anchorlib.store.seal import is_unfinished
from anchorlib.store.tail import whole_rows

__all__ = ["RunReader", "end_copy", "listed_ranks"]


class RunReader:
    """Committed rows of every rank of one run; never repairs, never locks."""

    def __init__(
        self, location: Location, name: str, asked: tuple[str, str | None] | None = None
    ) -> None:
        """`location` is the run's own: its keys begin with "rank0/".

        asked: what `find_run` was given for it, as other processes may be given it.
        """
        self.location = location
        self.name = name
        self.asked = asked
        self._ranks: dict[int, RankReader] = {}
        self._looked: dict[int, tuple[int, int]] = {}
        self._copied: dict[int, bool] = {}

    def refresh(self) -> None:
        """Looks for new ranks, rows and series.

        A rank that was not sealed to its end does not exist. Raises RunNotFoundError where there is
        no other.
        """
        listed = self._listed()
        found = {rank: reader for rank in listed if (reader := self._sealed_or_live(rank))}
        if listed and not found:
            raise RunNotFoundError(
                f"no rank of {escape(self.name)} was sealed to its end: archive the run once more"
            )
        self._ranks = found

    def _sealed_or_live(self, rank: int) -> RankReader | None:
        try:
            return self._fresh(rank)
        except RunNotFoundError:
            if is_unfinished(self.location, rank):
                return None
            raise

    def _fresh(self, rank: int) -> RankReader:
        reader = self._ranks.get(rank)
        if reader is not None and reader.left_out:  # a copy, which grows no more
            return reader
        if reader is None or not reader.is_current:
            reader = RankReader(self.location, rank, self.name)
            reader.asked = self.asked
        else:
            reader.refresh()
        if self._looked.get(rank) != reader.version:
            self._copied[rank] = end_copy(self.location, self.name, reader)
            self._looked[rank] = reader.version
        return reader

    @property
    def ranks(self) -> list[int]:
        """The ranks seen so far, ascending."""
        return sorted(self._ranks)

    def rank(self, rank: int) -> RankReader:
        """One rank; raises KeyError where it has recorded nothing."""
        return self._ranks[rank]

    def open_rank(self, rank: int) -> RankReader:
        """One rank as it is now, without a look at the others. Raises RunNotFoundError."""
        self._ranks[rank] = self._fresh(rank)
        return self._ranks[rank]

    @property
    def state(self) -> str:
        """ "open" as long as any rank is, else "closed"."""
        states = {reader.catalogue.state for reader in self._ranks.values()}
        return "closed" if states == {"closed"} else "open"

    @property
    def is_copy(self) -> bool:
        """Whether it was copied while it was written: then it ends at a commit of that time."""
        return any(self._copied.values())

    def is_live(self, rank: int) -> bool | None:
        """Whether a process holds this rank right now; None where only a collector can know.

        A rank that is open and not live was left by a process that died.
        """
        lock = _lock(self.location, self.name, rank)
        return None if lock is None else is_locked(lock)

    def _listed(self) -> list[int]:
        return listed_ranks(self.location)


def end_copy(run: Location, name: str, reader: RankReader) -> bool:
    """Leaves out the rows that a copy of a live rank has in part; whether it is such a copy.

    It is one where rows had to be left out, and where the rank is open and was never written in
    this place: then no lock of it is there.
    """
    lock = _lock(run, name, reader.rank)
    if lock is None or reader.catalogue.state != "open" or is_locked(lock):
        return False
    reader.end_at(whole_rows(run, reader))
    return bool(reader.left_out) or not lock.exists()


def _lock(run: Location, name: str, rank: int) -> Path | None:
    """The lock file of a rank; None where only a collector knows."""
    if not isinstance(run, LocalLocation):
        return None
    return lock_path(run.root.parent, name, rank)


def listed_ranks(run: Location) -> list[int]:
    """The ranks of the run at a location, ascending.

    Also what bears the name of a rank and is no folder: opening it says so.
    """
    names = (entry.rstrip("/") for entry in run.list(""))
    return sorted(rank for rank in map(rank_of, names) if rank is not None)
