"""Removing and renaming runs of which several collectors each hold a part.

No collector knows of the others, so the parts cannot be changed in one transaction. Therefore all
collectors are asked first whether they would make the change, and if one of them would not, none is
told to make it. Where a collector fails after that, a renaming is taken back. A removal cannot be
taken back: it stops, the error says which collectors have removed their part, and the same command
given again removes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from anchorlib.errors import (
    AnchorError,
    CollectorError,
    OptionError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
)
from anchorlib.names import escape
from anchorlib.upkeep.archives import ArchiveState
from anchorlib.upkeep.keeper import Keeper, RemovalStatus
from anchorlib.upkeep.live_writers import Writing

__all__ = ["PartlyChangedError", "SpreadKeeper"]


class PartlyChangedError(CollectorError):
    """Raised where some collectors have removed or renamed their part of a run, others not.

    freed: how many bytes of disk were freed. kind: the kind of the failure of the collector that
    stopped the change, as in CollectorError; "" where that failure was of another class.
    """

    def __init__(self, message: str, freed: int = 0, kind: str = "") -> None:
        super().__init__(message)
        self.freed = freed
        self.kind = kind


class SpreadKeeper:
    """A `Keeper` for runs of which several collectors hold parts: it acts on all parts of a run.

    keepers: the keeper of each collector, by its address. The methods raise the errors of these
        keepers.
    """

    def __init__(self, keepers: Mapping[str, Keeper]) -> None:
        self._keepers = keepers

    @property
    def place(self) -> str:
        """The sorted addresses of the collectors, joined by commas."""
        return ",".join(sorted(keeper.place for keeper in self._keepers.values()))

    def writings(self) -> list[Writing]:
        """Return the ranks that are being written now, at any of the collectors."""
        writings = [one for keeper in self._keepers.values() for one in keeper.writings()]
        return sorted(writings, key=lambda one: (one.run, one.rank))

    def archives(self) -> list[ArchiveState]:
        """Return the states of all collectors' archives."""
        return [one for keeper in self._keepers.values() for one in keeper.archives()]

    def alone(self) -> dict[str, str]:
        """Return the archive of each run of which no collector has files now, by the run's name.

        All parts of such a run are in archives. The archive returned is that of the first
        collector, in the order of `keepers`, whose part is in one.
        """
        at = {place: keeper.alone() for place, keeper in self._keepers.items()}
        here = {
            run
            for place, keeper in self._keepers.items()
            for run in (keeper.runs() if any(at.values()) else ())
            if run not in at[place]
        }
        archives = {
            run: archive for alone in reversed(at.values()) for run, archive in alone.items()
        }
        return {run: archive for run, archive in archives.items() if run not in here}

    def runs(self) -> list[str]:
        """Return the names of the runs of all collectors, sorted."""
        return sorted({run for keeper in self._keepers.values() for run in keeper.runs()})

    def measure(self, run: str) -> tuple[int, bool]:
        """Return the bytes of disk of all parts, and whether a living process writes any part."""
        parts = self._holders(run, alone_too=False).values()
        return sum(one.bytes for one in parts), any(one.written for one in parts)

    def standing(self, run: str) -> RemovalStatus:
        """Return what is known of the whole run before it is removed or renamed.

        Each collector is asked once for its part; the answers are the result's `parts`. Raises
        RunNotFoundError where no collector has a part.
        """
        parts = self._holders(run)
        return RemovalStatus(
            sum(one.bytes for one in parts.values()),
            any(one.written for one in parts.values()),
            all(one.alone for one in parts.values()),
            _refused(run, parts),
            parts,
        )

    def remove(
        self, run: str, *, unless_after: int | None = None, known: RemovalStatus | None = None
    ) -> int:
        """Remove all parts of a run; return the bytes freed.

        unless_after: a time in nanoseconds since the epoch; a collector refuses if its part was
        written to after that time. With this option a part whose files are in an archive alone
        raises OptionError.
        known: what `standing` returned for the run a moment ago; None asks the collectors.

        Raises PartlyChangedError where a collector fails, and other collectors have removed their
        parts before, or the failing collector may have removed its own. The collectors that were
        not asked yet keep their parts; the same call again removes the rest.
        """
        freed: dict[str, int] = {}
        parts = None if known is None else known.parts
        rest = self._idle(run, parts, alone_too=unless_after is None)
        while rest:
            place = rest[0]
            try:
                freed[place] = self._keepers[place].remove(run, unless_after=unless_after)
            except RunNotFoundError:  # somebody else removed this part a moment ago
                freed[place] = 0
            except AnchorError as error:
                if not freed and self._keeps(place, run):
                    raise
                raise _removed_in_part(run, freed, rest, error) from error
            rest = rest[1:]
        return sum(freed.values())

    def rename(self, run: str, name: str) -> None:
        """Rename all parts of a run; where one part cannot be renamed, all keep the old name.

        Raises RunExistsError where a collector has a run of the new name, PartlyChangedError where
        a collector fails and some part, renamed by then, cannot be given its old name back.
        """
        if self._held(name):
            raise RunExistsError(
                f"there is a run {escape(name)!r} already: take another name, or remove that one "
                "first (anchor rm)"
            )
        done: list[str] = []
        for place in self._idle(run):
            try:
                self._keepers[place].rename(run, name)
            except AnchorError as error:
                # It may have renamed its part, and only the answer is lost.
                asked = done if self._keeps(place, run) else [*done, place]
                if left := [one for one in asked if not self._has_renamed(one, name, run)]:
                    raise _renamed_in_part(run, name, left, place, error) from error
                raise
            done.append(place)

    def finish(self) -> tuple[int, list[str]]:
        """Do nothing, since collectors complete interrupted removals when they start.

        Return 0 completed removals and no messages.
        """
        return 0, []

    def _has_renamed(self, place: str, run: str, name: str) -> bool:
        try:
            self._keepers[place].rename(run, name)
        except RunNotFoundError:  # nothing there has the name that would be taken back
            return True
        except AnchorError:
            return False
        return True

    def _keeps(self, place: str, run: str) -> bool:
        """Return whether a collector that failed to change a run still has its part.

        The collector is asked. False where it has no part, and where it cannot be reached.
        """
        try:
            self._keepers[place].measure(run)
        except OptionError:  # in its archive alone
            return True
        except AnchorError:
            return False
        return True

    def _idle(
        self,
        run: str,
        known: Mapping[str, RemovalStatus] | None = None,
        *,
        alone_too: bool = False,
    ) -> list[str]:
        """Return the addresses of all collectors that hold a part of a run, if all may change it.

        Nothing is changed by this call. Raises RunNotFoundError where no collector has a part,
        RunBusyError where a part is being written, CollectorError where a collector would refuse.
        known: what is known of each part, by address, if the collectors were asked already; None
        asks them. alone_too: whether the files of a part may be in a collector's archive alone;
        otherwise such a part raises OptionError, if the collectors are asked.
        """
        holders = self._holders(run, alone_too=alone_too) if known is None else known
        if any(one.written for one in holders.values()):
            raise RunBusyError(f"run {escape(run)!r} is being written: stop that process first")
        if why := _refused(run, holders):
            refused = CollectorError(f"{why}; nothing was changed at any of the collectors")
            refused.kind = "forbidden"
            raise refused
        return list(holders)

    def _holders(self, run: str, *, alone_too: bool = True) -> dict[str, RemovalStatus]:
        standings = self._held(run, alone_too=alone_too)
        if not standings:
            raise RunNotFoundError(f"no run {escape(run)!r} at any of these collectors")
        return standings

    def _held(self, run: str, *, alone_too: bool = False) -> dict[str, RemovalStatus]:
        """Return what is known of each part of a run, by the address of the collector that has it.

        {} where no collector has a part. Raises OptionError where the files of a part are in a
        collector's archive alone, unless `alone_too`.
        """
        standings = {}
        for place, keeper in self._keepers.items():
            try:
                one = keeper.standing(run)
            except RunNotFoundError:
                continue
            if one.alone and not alone_too:
                raise OptionError(
                    f"run {escape(run)!r} of {place} is in its archive alone, where a collector "
                    "changes nothing"
                )
            standings[place] = one
        return standings


def _refused(run: str, parts: Mapping[str, RemovalStatus]) -> str:
    """Return why the first collector that would refuse to change its part refuses; "" if none does.

    parts: what is known of each part, by the collector's address.
    """
    for place, one in parts.items():
        if one.stays:
            return f"{place} would not change run {escape(run)!r}: {one.stays}"
    return ""


def _removed_in_part(
    run: str, freed: Mapping[str, int], rest: list[str], error: AnchorError
) -> PartlyChangedError:
    gone = ", ".join(f"{place} ({nbytes:,} bytes)" for place, nbytes in freed.items())
    done = f"is removed in part: removed at {gone}" if gone else "may be removed in part"
    after = f", and {', '.join(rest[1:])} not asked" if rest[1:] else ""
    return PartlyChangedError(
        f"run {escape(run)!r} {done}; {rest[0]} did not confirm it{after}: {error}; "
        f"`anchor rm {escape(run)}` with the same --store removes the rest",
        sum(freed.values()),
        _kind(error),
    )


def _renamed_in_part(
    run: str, name: str, left: list[str], failed: str, error: AnchorError
) -> PartlyChangedError:
    """Return the error for a renaming that could not be taken back everywhere.

    left: the collectors at which the part (perhaps) has the new name. failed: the collector that
    failed, of which it is not known whether it renamed its part. error: its failure.
    """
    where = ", ".join(f"{one} (perhaps)" if one == failed else one for one in left)
    return PartlyChangedError(
        f"run {escape(run)!r} could not be renamed ({error}), and is called {escape(name)!r} at "
        f"{where}: rename it back there, with each of these alone as --store",
        kind=_kind(error),
    )


def _kind(error: AnchorError) -> str:
    return error.kind if isinstance(error, CollectorError) else ""
