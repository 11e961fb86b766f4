"""A run as readers find it: its ranks, each read when it is first asked for."""

from __future__ import annotations

from anchorlib.store.layout import rank_of
from anchorlib.store.location import LocalLocation, Location
from anchorlib.store.lock import is_locked, lock_path
from anchorlib.store.rank import RankReader

__all__ = ["RunReader", "listed_ranks"]


class RunReader:
    """Committed rows of every rank of one run; never repairs, never locks."""

    def __init__(self, location: Location, name: str) -> None:
        """`location` is the run's own: its keys begin with "rank0/"."""
        self.location = location
        self.name = name
        self._ranks: dict[int, RankReader] = {}

    def refresh(self) -> None:
        """Looks for new ranks, rows and series."""
        self._ranks = {rank: self._fresh(rank) for rank in self._listed()}

    def _fresh(self, rank: int) -> RankReader:
        reader = self._ranks.get(rank)
        if reader is None or not reader.is_current:
            return RankReader(self.location, rank, self.name)
        reader.refresh()
        return reader

    @property
    def ranks(self) -> list[int]:
        """The ranks seen so far, ascending."""
        return sorted(self._ranks)

    def rank(self, rank: int) -> RankReader:
        """One rank; raises KeyError where it has recorded nothing."""
        return self._ranks[rank]

    @property
    def state(self) -> str:
        """ "open" as long as any rank is, else "closed"."""
        states = {reader.catalogue.state for reader in self._ranks.values()}
        return "closed" if states == {"closed"} else "open"

    def is_live(self, rank: int) -> bool | None:
        """Whether a process holds this rank right now; None where only a collector can know.

        A rank that is open and not live was left by a process that died.
        """
        if not isinstance(self.location, LocalLocation):
            return None
        return is_locked(lock_path(self.location.root.parent, self.name, rank))

    def _listed(self) -> list[int]:
        return listed_ranks(self.location)


def listed_ranks(run: Location) -> list[int]:
    """The ranks of the run at a location, ascending.

    Also what bears the name of a rank and is no folder: opening it says so.
    """
    names = (entry.rstrip("/") for entry in run.list(""))
    return sorted(rank for rank in map(rank_of, names) if rank is not None)
