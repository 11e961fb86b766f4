"""Moves closed runs of a collector to an archive, in the background.

A run is archived when its trainers have closed all of its ranks and no record was written to it for
a while. A rank whose trainer went on at another collector is closed at that collector, so that the
part of the rank that is stored here stays open. It is archived once the closed part of the rank is
in the archive.
A run whose archiving fails is tried again after pauses that double. All this is done in a thread of
its own, so that streams and readers do not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from anchor_server.counters import ArchiveTally
from anchorlib.archive import (
    Keep,
    NotEndedError,
    Shelf,
    archive_run,
    checked_shelf,
    is_spread,
    make_room,
    open_ranks,
)
from anchorlib.errors import AnchorError, CollectorError, RunNotFoundError
from anchorlib.store import (
    LocalLocation,
    RankReader,
    is_written,
    list_runs,
    newest_ns,
    noted_runs,
    open_parts,
    run_directory,
)

__all__ = ["Archiver", "Archiving"]

_log = logging.getLogger("anchor_server")

_FIRST_PAUSE: Final = 5.0  # seconds until a failed attempt is repeated; doubled each time
_LONGEST_PAUSE: Final = 1800.0
_LOOK: Final = 10.0  # seconds between two looks at the store, at most


@dataclass(frozen=True, slots=True)
class Archiving:
    """Where and when closed runs are archived.

    shelf: the archive, that is, the directory or object store where runs go.
    after: how many seconds after its last record a closed run is archived.
    keep: which archived runs stay in the store, and for how long.
    without_conditions: whether to use also an object store that cannot refuse to overwrite.
    """

    shelf: Shelf
    after: float = 60.0
    keep: Keep = field(default_factory=Keep)
    without_conditions: bool = False


@dataclass(slots=True)
class _Pause:
    """A pause before a retry: twice as long as the pause before, at most `_LONGEST_PAUSE`.

    until: when the pause ends, as `time.monotonic()` counts.
    seconds: how long the pause is; 0 before the first failure.
    """

    until: float = 0.0
    seconds: float = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def longer(self) -> float:
        self.seconds = min(max(2 * self.seconds, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.until = time.monotonic() + self.seconds
        return self.seconds


class _EndedError(Exception):
    """Raised to end `archive_run` in the middle of a run, because the archiver is to stop."""


class Archiver:
    """A thread that archives the closed runs of a store until it is stopped.

    how: where and when runs are archived. tally: the counters that the thread updates.
    """

    def __init__(self, store: Path, how: Archiving, tally: ArchiveTally) -> None:
        self._store = store
        self._how = how
        self._tally = tally
        self._shelf: Shelf | None = None
        self._stopped = threading.Event()
        self._place = _Pause()
        self._runs: dict[str, _Pause] = {}
        self._asking: dict[str, _Pause] = {}
        self._thread = threading.Thread(target=self._work, name="anchor-archiver", daemon=True)

    def start(self) -> None:
        """Starts the thread that archives closed runs."""
        self._thread.start()

    def end(self) -> None:
        """Asks the thread to end before it archives another rank, and returns at once."""
        self._stopped.set()

    def stop(self, patience: float) -> None:
        """Ends the thread; waits at most `patience` seconds for the rank that it is archiving.

        If only some ranks of a run are archived by then, the next archiver of this store completes
        the run.
        """
        self.end()
        if self._thread.is_alive():
            self._thread.join(patience)

    def look(self) -> None:
        """Archives the runs that have been closed for long enough.

        Then removes from the store the archived runs that the setting `keep` does not keep. Blocks
        until all that is done. Raises nothing: errors are logged and counted.
        """
        try:
            self._shelf = self._shelf or checked_shelf(
                self._how.shelf, without_conditions=self._how.without_conditions
            )
            waiting = self._waiting(self._shelf)
            self._tally.looked(waiting)
            for run in waiting:
                if self._stopped.is_set():
                    return
                self._archive(run, self._shelf)
            freed = make_room(self._store, self._shelf, self._how.keep)
            self._tally.freed += sum(freed.values())
            for run, nbytes in freed.items():
                _log.info("%s is in its archive alone now, %d bytes freed", run, nbytes)
            self._place, self._tally.away = _Pause(), ""
        except Exception as error:  # noqa: BLE001  # a fault here must not end the thread
            self._failed(self._place, "", error)

    def _work(self) -> None:
        while not self._stopped.wait(min(_LOOK, self._how.after)):
            if self._place.is_over:
                self.look()

    def _waiting(self, shelf: Shelf) -> list[str]:
        """Returns the runs that are due: closed for long enough, and not archived yet.

        Runs whose archiving failed before are among them.
        """
        noted = {*noted_runs(self._store)}
        runs = [run for run in list_runs(LocalLocation(self._store)) if run not in noted]
        return [run for run in runs if self._is_ripe(run, shelf)]

    def _is_ripe(self, run: str, shelf: Shelf) -> bool:
        try:
            if is_written(self._store, run):
                return False
            parts = open_parts(LocalLocation(run_directory(self._store, run)), run)
            quiet = (time.time_ns() - newest_ns(parts)) / 1e9
        except AnchorError:  # removed a moment ago, or damaged here: `anchor verify` says so
            return False
        return quiet >= self._how.after and self._has_ended(run, parts, shelf)

    def _has_ended(self, run: str, parts: Sequence[RankReader], shelf: Shelf) -> bool:
        """Returns whether this collector should archive its parts of the run's ranks now.

        Returns True where all these parts are closed. Where other collectors hold parts of the run
        too, also returns True as soon as one rank was closed, here or at another collector: that
        collector may be waiting for the part of the rank that is here. The archive, which shows
        what other collectors closed, is asked after pauses that double; during a pause the result
        is False. Also returns True while the run waits for a new try because archiving it failed,
        and where the parts in the archive are damaged. Raises CollectorError where the archive does
        not answer.

        parts: the parts that this collector holds.
        """
        if all(one.catalogue.state == "closed" for one in parts):
            return True
        if run in self._runs and not self._runs[run].is_over:
            return True  # what failed stays due, and the archive is not asked about it meanwhile
        asking = self._asking.setdefault(run, _Pause())
        if not (is_spread(parts) and asking.is_over):
            return False
        try:
            waiting = open_ranks(run, parts, shelf)
        except CollectorError:
            raise
        except AnchorError:  # such as a damaged part there: archiving the run finds and tells it
            return True
        if waiting:
            asking.longer()  # each answer costs a request to the archive
        return len(waiting) < len({part.rank for part in parts})

    def _archive(self, run: str, shelf: Shelf) -> None:
        pause = self._runs.setdefault(run, _Pause())
        if not pause.is_over:
            return
        try:
            done = archive_run(self._store, run, shelf, self._tick)
        except CollectorError:
            raise
        except (_EndedError, RunNotFoundError):  # finished by the next archiver, or removed
            return
        except NotEndedError:  # the ranks that have ended are there; the others are asked again
            return
        except Exception as error:  # noqa: BLE001  # other runs can be archived all the same
            self._failed(pause, run, error)
            return
        del self._runs[run]
        self._tally.took(run, done.bytes)
        _log.info("%s is archived in %s, %d bytes", run, done.place, done.bytes)

    def _tick(self, done: int, ranks: int) -> None:  # noqa: ARG002  # as `archive_run` calls it
        """Raises _EndedError where the archiver is to stop.

        `archive_run` calls this method before each rank, so that the archiver ends soon even in the
        middle of a run of many ranks. The arguments, which are not used, count ranks.
        """
        if self._stopped.is_set():
            raise _EndedError

    def _failed(self, pause: _Pause, run: str, error: Exception) -> None:
        seconds = pause.longer()
        text = str(error) if isinstance(error, AnchorError) else type(error).__name__
        self._tally.failed(text, run)
        what = f"{run} is not archived" if run else "nothing is archived"
        _log.warning("%s: %s; tried again in %.0f s", what, text, seconds)
