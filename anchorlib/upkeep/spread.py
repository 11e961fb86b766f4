"""The keeper of runs that several collectors hold together: it changes all parts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anchorlib.errors import (
    AnchorError,
    OptionError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
)
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.upkeep.archives import ArchiveState
    from anchorlib.upkeep.keeping import Keeper
    from anchorlib.upkeep.writing import Writing

__all__ = ["SpreadKeeper"]


class SpreadKeeper:
    """Keeps runs of which several collectors hold parts, each with its keeper; see `Keeper`.

    All collectors are asked before anything is changed, so one that does not answer prevents the
    change everywhere. Raises as the keepers do.
    """

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self._keepers = keepers

    def writings(self) -> list[Writing]:
        """The ranks that are being written now, at any of the collectors."""
        found = [one for keeper in self._keepers for one in keeper.writings()]
        return sorted(found, key=lambda one: (one.run, one.rank))

    def archives(self) -> list[ArchiveState]:
        """What became of closed runs, for each collector by itself."""
        return [one for keeper in self._keepers for one in keeper.archives()]

    def measure(self, run: str) -> tuple[int, bool]:
        """Bytes of disk of all parts, and whether a living process writes one."""
        found = self._holders(run).values()
        return sum(nbytes for nbytes, _ in found), any(written for _, written in found)

    def remove(self, run: str, *, unless_after: int | None = None) -> int:
        """Removes all parts of a run; returns the bytes freed."""
        holders = self._idle(run, alone_too=unless_after is None)
        return sum(keeper.remove(run, unless_after=unless_after) for keeper in holders)

    def rename(self, run: str, name: str) -> None:
        """Gives all parts another name; where one part cannot be renamed, all keep the old name."""
        if self._held(name):
            raise RunExistsError(
                f"there is a run {escape(name)!r} already: take another name, or remove that one "
                "first (anchor rm)"
            )
        done: list[Keeper] = []
        try:
            for keeper in self._idle(run):
                keeper.rename(run, name)
                done.append(keeper)
        except AnchorError:
            for keeper in done:
                keeper.rename(name, run)
            raise

    def finish(self) -> tuple[int, list[str]]:
        """Does nothing: collectors end interrupted removals when they start."""
        return 0, []

    def _idle(self, run: str, *, alone_too: bool = False) -> list[Keeper]:
        """The keepers that hold a part of a run. Raises RunBusyError where a part is written.

        alone_too: also keepers whose part is in its archive alone.
        """
        holders = self._holders(run, alone_too=alone_too)
        if any(written for _, written in holders.values()):
            raise RunBusyError(f"run {escape(run)!r} is being written: stop that process first")
        return list(holders)

    def _holders(self, run: str, *, alone_too: bool = False) -> dict[Keeper, tuple[int, bool]]:
        found = self._held(run, alone_too=alone_too)
        if not found:
            raise RunNotFoundError(f"no run {escape(run)!r} at any of these collectors")
        return found

    def _held(self, run: str, *, alone_too: bool = False) -> dict[Keeper, tuple[int, bool]]:
        found = {}
        for keeper in self._keepers:
            try:
                found[keeper] = keeper.measure(run)
            except RunNotFoundError:
                continue
            except OptionError:  # its part is in an archive alone
                if not alone_too:
                    raise
                found[keeper] = (0, False)
        return found
