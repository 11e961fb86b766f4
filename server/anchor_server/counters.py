"""The counters of a collector: plain numbers, which the metrics and the Keeper service read."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from anchor_server.stream_registry import StreamRegistry

__all__ = ["SECONDS", "ArchiveTally", "CollectorCounters"]

SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the histogram buckets for commit times; longer commits have one more bucket."""

_REASONS: Final = 16  # clients choose the words of a reason: further ones are counted as "other"


@dataclass(slots=True)
class ArchiveTally:
    """The counters of the archiver: what it has archived, what is due, and what failed.

    Only the archiver's thread changes the counters. It replaces each value as a whole, so that any
    thread may read them.

    place: the archive's directory or URL.
    runs, bytes: how much was archived since the collector was made.
    due: the closed runs that were still to be archived when the store was last looked through.
    freed: bytes that removing archived runs from the store has freed.
    failures: the number of failed attempts to archive.
    problem: the error of the last failed attempt; "" before the first.
    failing: the runs that could not be archived: the error of each, keyed by the run's name.
    away: why no run at all can be archived now, such as an archive that is down; else "".
    """

    place: str = ""
    runs: int = 0
    bytes: int = 0
    due: tuple[str, ...] = ()
    freed: int = 0
    failures: int = 0
    problem: str = ""
    failing: Mapping[str, str] = field(default_factory=dict)
    away: str = ""

    @property
    def waiting(self) -> int:
        """How many closed runs are not archived yet; runs whose archiving failed count too."""
        return len(self.due)

    def looked(self, due: Sequence[str]) -> None:
        """Sets which runs are due to be archived, and forgets the failures of all other runs."""
        self.due = tuple(due)
        self.failing = {run: why for run, why in self.failing.items() if run in due}

    def took(self, run: str, nbytes: int) -> None:
        """Counts a run of `nbytes` bytes as archived; removes it from `due` and `failing`."""
        self.runs += 1
        self.bytes += nbytes
        self.looked([name for name in self.due if name != run])

    def failed(self, problem: str, run: str = "") -> None:
        """Counts a failed attempt to archive.

        problem: the error, as text.
        run: the run that could not be archived; "" where no run at all can be archived.
        """
        self.failures += 1
        self.problem = problem
        if run:
            self.failing = {**self.failing, run: problem}
        else:
            self.away = problem


class CollectorCounters:
    """The totals of a collector since it was made; any thread may count.

    Commits are counted by their duration: there is a count for each entry of `SECONDS`, of commits
    that took at most that time and longer than the entry before, and one for all longer commits.

    records: how many records were "stored", "dup" (already stored) or "rejected", by these keys.
    nbytes: bytes of stored values.
    damaged: how many values and messages did not fit their checksum.
    refused: how many calls were refused, keyed by the kind of the refusal.
    dropped: how many observations a client, or a store without room, left out, keyed by reason.
    roster: the streams (Push calls of trainers) that write a rank now, with their rates.
    streams: how many streams are open.
    archive: the archiver's counters; None for a collector that archives nothing.
    commits: the counts of commits by duration, as explained above.
    commit_seconds: the seconds that all commits took together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.records: Counter[str] = Counter({"stored": 0, "dup": 0, "rejected": 0})
        self.nbytes = 0
        self.damaged = 0
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.roster = StreamRegistry()
        self.archive: ArchiveTally | None = None
        self.streams = 0
        self.commits = [0] * (len(SECONDS) + 1)
        self.commit_seconds = 0.0

    def add(self, result: str, records: int, nbytes: int = 0) -> None:
        """Counts records and the bytes of their values.

        result: what became of the records: "stored", "dup" (already in the store) or "rejected".
        """
        with self._lock:
            self.records[result] += records
            self.nbytes += nbytes

    def damage(self) -> None:
        """Counts a value or a message that did not fit its checksum."""
        with self._lock:
            self.damaged += 1

    def refuse(self, kind: str) -> None:
        """Counts a refused call under the kind of its refusal."""
        with self._lock:
            self.refused[kind] += 1

    def drop(self, reason: str, observations: int) -> None:
        """Counts observations that were left out.

        reason: why, in words. After 16 different reasons further ones are counted as "other".
        """
        with self._lock:
            known = reason in self.dropped or len(self.dropped) < _REASONS
            self.dropped[reason if known else "other"] += observations

    @contextmanager
    def commit(self) -> Iterator[None]:
        """A context that is counted, with its duration, as one commit to the store.

        A context that is left by an error is not counted.
        """
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        with self._lock:
            self.commits[bisect_left(SECONDS, seconds)] += 1
            self.commit_seconds += seconds
