"""The interface of a keeper, which removes and renames the runs of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from anchorlib.upkeep.archives import ArchiveState
from anchorlib.upkeep.live_writers import Writing

__all__ = ["Keeper", "RemovalStatus"]


@dataclass(frozen=True, slots=True)
class RemovalStatus:
    """What is known of a run before it is removed or renamed: its size, and what would prevent it.

    bytes: the run's size on disk. written: whether a living process writes it. alone: whether its
    files are in an archive and no longer in the store. stays: why the store would refuse to remove
    or rename the run for this caller; "" for no reason. parts: where several collectors hold parts
    of the run, the RemovalStatus of each part, by the collector's address; else empty.
    """

    bytes: int
    written: bool
    alone: bool = False
    stays: str = ""
    parts: Mapping[str, RemovalStatus] = field(default_factory=dict)


class Keeper(Protocol):
    """Measures, removes and renames whole runs of a store: of a directory, or of a collector.

    A run that a living process writes can be neither removed nor renamed. All methods raise
    StoreError where the store cannot be read or written, or is damaged, and CollectorError where a
    collector refuses or cannot be reached. In place of RunBusyError and RunExistsError, the keeper
    of a collector raises CollectorError, whose `kind` is the reason.
    """

    @property
    def place(self) -> str:
        """The store as canonical text, which does not depend on how a user spelled it.

        A caller compares these texts to notice that two arguments name a run of the same store.
        """
        ...

    def writings(self) -> list[Writing]:
        """Return the ranks that are being written now, with what is known of their writers."""
        ...

    def archives(self) -> list[ArchiveState]:
        """Return the state of each archive that closed runs of the store went to."""
        ...

    def alone(self) -> dict[str, str]:
        """Return the archive (its address) of each run that is there alone, by the run's name.

        Alone there means that the store no longer has files of the run.
        """
        ...

    def runs(self) -> list[str]:
        """Return the names of all runs of the store, sorted."""
        ...

    def measure(self, run: str) -> tuple[int, bool]:
        """Return the bytes of disk that a run takes, and whether a living process writes it.

        Raises RunNotFoundError for an unknown run, OptionError for a run whose files a collector
        has moved to its archive.
        """
        ...

    def standing(self, run: str) -> RemovalStatus:
        """Return what is known of a run before it is removed or renamed.

        Unlike `measure`, this method also answers for a run whose files a collector has moved to
        its archive. Raises RunNotFoundError for an unknown run.
        """
        ...

    def remove(
        self, run: str, *, unless_after: int | None = None, known: RemovalStatus | None = None
    ) -> int:
        """Remove a run; return the bytes of disk that this freed.

        unless_after: refuse with RunBusyError where the run was written to after this time
            (nanoseconds since the epoch).
        known: what `standing` returned a moment ago, so that no collector is asked again.
        Raises RunNotFoundError for an unknown run, RunBusyError where a living process writes it.
        """
        ...

    def rename(self, run: str, name: str) -> None:
        """Give the run the name `name`.

        Raises RunExistsError where another run has that name, RunNotFoundError for an unknown run,
        RunBusyError where a living process writes it.
        """
        ...

    def finish(self) -> tuple[int, list[str]]:
        """Delete what interrupted removals have left of runs.

        Return how many removals were completed, and a message for each that could not be completed.
        For a collector this does nothing and returns (0, []): a collector completes removals itself
        when it starts.
        """
        ...
