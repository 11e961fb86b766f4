"""A run as readers find it: its ranks, each opened when it is first needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from anchorlib.errors import RunNotFoundError, StoreError
from anchorlib.names import escape
from anchorlib.store.disk import is_locked, lock_path
from anchorlib.store.format import claim_key
from anchorlib.store.locations import LocalLocation, Location, PartKey, listed_parts
from anchorlib.store.read.column_memory import COLUMN_MEMORY
from anchorlib.store.read.copied_tail import whole_rows
from anchorlib.store.read.joined import joined_rank
from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.run_digests import digests_of_run
from anchorlib.store.read.run_figures import RunFigures
from anchorlib.store.read.run_index import archived_figures
from anchorlib.store.read.run_steps import steps_of_run
from anchorlib.store.seal import RankDigests, StepFigures, is_unfinished

__all__ = ["RunReader", "end_copy", "open_parts"]


class RunReader:
    """Reads the committed rows of every rank of one run; changes no file and takes no lock.

    A row of a rank's table is committed once it was written completely.
    """

    def __init__(
        self, location: Location, name: str, asked: tuple[str, str | None] | None = None
    ) -> None:
        """Prepare to read a run; nothing is read yet.

        location: where the run is; its keys begin with "rank0/". name: the run's name.
        asked: the run and store that `find_run` was given, by which other processes find the run
        (`rank_handle`); None where other processes need not open the run's ranks.
        """
        self.location = location
        self.name = name
        self.asked = asked
        self.column_memory = COLUMN_MEMORY
        self.figures: RunFigures | None = None
        self._looked_for_figures = False
        self._digests: dict[int, RankDigests] | None = None
        self._ranks: dict[int, RankReader] = {}
        self._parts: dict[PartKey, RankReader] = {}
        self._looked: dict[PartKey, tuple[int, int]] = {}
        self._copied: dict[PartKey, bool] = {}
        self._joined: dict[int, list[tuple[int, tuple[int, int]]]] = {}

    def refresh(self) -> None:
        """Look for new ranks, rows and series; before the first call this reader knows no rank.

        A run of sealed (archived) ranks that has an index stays as it was at the first call:
        `figures` is its index, and each rank is opened when it is first needed. A rank whose
        sealing was interrupted is left out. Raises RunNotFoundError where the ranks that were seen
        before are gone, or where no rank was sealed to its end; StoreError where records between
        the parts of a rank are missing.
        """
        if not self._looked_for_figures:
            self.figures = archived_figures(self.location)
            self._looked_for_figures = True
        if self.figures is not None:
            return
        self._look()
        try:
            self._join()
        except StoreError:
            # While its parts were read one after the other, a rank may have gone on at another
            # collector: then a second look finds the missing records.
            self._look()
            self._join()

    def _look(self) -> None:
        listed = listed_parts(self.location)
        parts = {key: reader for key in listed if (reader := self._sealed_or_live(key))}
        if self._parts and not listed:
            raise RunNotFoundError(
                f"{escape(self.name)} is not here any more: it was removed or renamed; "
                "`anchor runs` lists what there is"
            )
        if listed and not parts:
            raise RunNotFoundError(
                f"no rank of {escape(self.name)} was sealed to its end: archive the run once more"
            )
        self._parts = parts

    def _sealed_or_live(self, key: PartKey) -> RankReader | None:
        try:
            return self._fresh(key)
        except RunNotFoundError:
            is_claimed = self.location.get(claim_key(*key), 0, 1) is not None
            if is_claimed or is_unfinished(self.location, *key):
                return None
            raise

    def _join(self) -> None:
        ranks: dict[int, list[RankReader]] = {}
        for (rank, _), reader in sorted(self._parts.items()):
            ranks.setdefault(rank, []).append(reader)
        self._ranks = {rank: self._whole(rank, parts) for rank, parts in ranks.items()}

    def _whole(self, rank: int, parts: list[RankReader]) -> RankReader:
        """Return a reader of the whole rank `rank` from readers of its parts.

        A part is what one collector holds of the rank. The reader of the last call is returned
        again as long as no part has changed.
        """
        known = [(id(part), part.version) for part in parts]
        if self._joined.get(rank) != known or rank not in self._ranks or len(parts) == 1:
            joined = joined_rank(parts, self.name)
            joined.asked, joined.column_memory = self.asked, self.column_memory
            self._joined[rank] = known
            return joined
        return self._ranks[rank]

    def _fresh(self, key: PartKey) -> RankReader:
        reader = self._parts.get(key)
        if reader is not None and reader.left_out:  # the copy of a live rank, which never grows
            return reader
        if reader is None or not reader.is_current:
            reader = self._opened(key)
        else:
            reader.refresh()
        if self._looked.get(key) != reader.version:
            self._copied[key] = end_copy(self.location, self.name, reader)
            self._looked[key] = reader.version
        return reader

    def _opened(self, key: PartKey) -> RankReader:
        reader = RankReader(self.location, key[0], self.name, key[1])
        reader.asked, reader.column_memory = self.asked, self.column_memory
        return reader

    @property
    def ranks(self) -> list[int]:
        """The numbers of the ranks that `refresh` or `open_rank` has found, ascending."""
        return sorted(self._ranks) if self.figures is None else list(self.figures.ranks)

    def rank(self, rank: int) -> RankReader:
        """Return the reader of rank number `rank`; raise KeyError if `ranks` lacks it."""
        if self.figures is not None and rank in self.figures.ranks and rank not in self._ranks:
            parts = self.figures.parts_of(rank)
            if parts != ((rank, 0),):
                return self.open_rank(rank)
            self._ranks[rank] = self._opened((rank, 0))
        return self._ranks[rank]

    def each_rank(self, ranks: Sequence[int]) -> Iterator[RankReader]:
        """Yield a reader of each of these ranks, in the order of `ranks`, which holds rank numbers.

        The readers are those that exist at the time of this call, also where `refresh` finds
        later that a rank was removed. A rank of an archived run, however, is opened only when the
        iteration comes to it. The iteration raises KeyError at a number that the property `ranks`
        does not have.
        """
        return map(self.rank if self.figures is not None else dict(self._ranks).__getitem__, ranks)

    def open_rank(self, rank: int) -> RankReader:
        """Return a reader of one rank as it is now; other ranks are not read.

        The method `rank` returns this reader from then on. Raises RunNotFoundError where there is
        no such rank, StoreError where records between its parts (what each collector holds of it)
        are missing.
        """
        keys = [key for key in listed_parts(self.location) if key[0] == rank] or [(rank, 0)]
        parts = {key: self._fresh(key) for key in keys}
        self._parts |= parts
        self._ranks[rank] = self._whole(rank, list(parts.values()))
        return self._ranks[rank]

    def digests(self) -> dict[int, RankDigests]:
        """Return the digests of an archived run's ranks, by rank.

        Digests are hashes of the records of each range of steps, by which runs are compared. Ranks
        without digests are left out. The result is {} for a run that is not archived, and where the
        archive's digests are missing or damaged. The digests are read once and cached.
        """
        if self._digests is None:
            self._digests = digests_of_run(self.location, self.figures) or {}
        return self._digests

    def by_step(self) -> StepFigures | None:
        """Return counts, extremes and histograms of an archived run's steps, over all ranks.

        None for a run that is not archived, and where the archive's figures of steps are missing or
        damaged.
        """
        return steps_of_run(self.location, self.figures)

    @property
    def state(self) -> str:
        """The state of the run: "closed" if there are ranks and all are closed, else "open"."""
        if self.figures is not None:
            return "closed" if self.figures.closed else "open"
        states = {reader.catalogue.state for reader in self._ranks.values()}
        return "closed" if states == {"closed"} else "open"

    @property
    def is_copy(self) -> bool:
        """Whether a rank of this run is a copy that was made while the rank was being written.

        Such a copy is read up to its last complete row.
        """
        return any(self._copied.values())

    def is_live(self, rank: int) -> bool | None:
        """Return whether a process is writing this rank now; None if that cannot be known here.

        For a run in a local directory the rank's lock file tells it; for another run only the run's
        collector knows. A rank that is open and not live was left behind by a process that died.
        """
        parts = {0, *(part for known, part in self._parts if known == rank)}
        locks = [_lock(self.location, self.name, rank, part) for part in parts]
        known = [is_locked(lock) for lock in locks if lock is not None]
        return any(known) if known else None


def open_parts(run: Location, name: str) -> list[RankReader]:
    """Return a reader of each part of each rank at a location.

    A part is what one collector holds of a rank. Unlike in `RunReader`, it is no error if parts of
    a rank are missing here, since they may be in other places.
    """
    return [RankReader(run, rank, name, part) for rank, part in listed_parts(run)]


def end_copy(run: Location, name: str, reader: RankReader) -> bool:
    """Make `reader` end before the incomplete rows of a rank that was copied while it was written.

    Return whether the rank is such a copy. An open rank that nobody writes is taken for a copy if
    it has incomplete rows, or if the store has no lock file of the rank: then it was never written
    here. For other ranks, and for runs that are not in a directory, do nothing and return False.
    run: the location of the run. name: the run's name.
    """
    lock = _lock(run, name, reader.rank, reader.part)
    # A sealed rank is whole; it is "open" if its session went on at another collector.
    if lock is None or reader.is_sealed:
        return False
    if reader.catalogue.state != "open" or is_locked(lock):
        return False
    reader.end_at(whole_rows(run, reader))
    return bool(reader.left_out) or not lock.exists()


def _lock(run: Location, name: str, rank: int, part: int) -> Path | None:
    """Return the path of the lock file of part `part` of a rank; 0 is the first or only part.

    Return None if the run is not in a directory. run: the run's location. name: the run's name.
    """
    if not isinstance(run, LocalLocation):
        return None
    return lock_path(run.root.parent, name, rank, part)
