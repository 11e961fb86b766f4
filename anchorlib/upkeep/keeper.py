"""The interface of a keeper, which removes and renames the runs of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from anchorlib.upkeep.archives import ArchiveState
from anchorlib.upkeep.live_writers import Writing

__all__ = ["Keeper", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a run before it is removed or renamed.

    bytes: of disk. written: whether a living process writes it. alone: whether its files are in an
    archive alone. stays: why it would be neither removed nor renamed for this caller; "" for no
    reason. parts: the same of each collector that holds a part, by its address.
    """

    bytes: int
    written: bool
    alone: bool = False
    stays: str = ""
    parts: Mapping[str, Standing] = field(default_factory=dict)


class Keeper(Protocol):
    """Removes and renames whole runs, which nobody may do while a process writes them."""

    @property
    def place(self) -> str:
        """The store as text, which does not depend on how a user named the store.

        A run that is named in two ways is recognised by it.
        """
        ...

    def writings(self) -> list[Writing]:
        """The ranks that are being written now. Raises StoreError, CollectorError."""
        ...

    def archives(self) -> list[ArchiveState]:
        """The archives that closed runs of the store went to. Raises StoreError, CollectorError."""
        ...

    def alone(self) -> dict[str, str]:
        """The runs whose files are in an archive alone, each with it. Raises as `archives`."""
        ...

    def runs(self) -> list[str]:
        """The names of all runs of the store, sorted. Raises StoreError, CollectorError."""
        ...

    def measure(self, run: str) -> tuple[int, bool]:
        """Bytes of disk that a run takes, and whether a living process writes it.

        Raises OptionError for a run of which a collector has no files, since they are in its
        archive alone, RunNotFoundError, StoreError, CollectorError.
        """
        ...

    def standing(self, run: str) -> Standing:
        """What is known of a run before it is removed or renamed.

        A run whose files are in an archive alone is asked about as well. Raises RunNotFoundError,
        StoreError, CollectorError.
        """
        ...

    def remove(
        self, run: str, *, unless_after: int | None = None, known: Standing | None = None
    ) -> int:
        """Removes a run; returns the bytes freed.

        unless_after: the run stays, with RunBusyError, where it was written to after this time
            (nanoseconds since the epoch).
        known: what `standing` said a moment ago, so that no collector is asked again.
        Raises RunNotFoundError, RunBusyError, StoreError, CollectorError.
        """
        ...

    def rename(self, run: str, name: str) -> None:
        """Gives a run another name. Raises RunExistsError, and the errors of `remove`."""
        ...

    def finish(self) -> tuple[int, list[str]]:
        """Ends interrupted removals; returns how many, and what could not be deleted, in words.

        A collector does so itself when it starts.
        """
        ...
