"""What a collector counts about itself; plain numbers, whether anyone asks for them or not."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from anchor_server.roster import Roster

__all__ = ["SECONDS", "ArchiveTally", "Tally"]

SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper ends of the buckets that commits are sorted into; what took longer has its own."""

_REASONS: Final = 16  # reasons are clients' words: further ones are counted together


@dataclass(slots=True)
class ArchiveTally:
    """What was archived in the background; one thread writes it, and puts new values in place.

    place: the archive. runs, bytes: that were put there, since the collector was made.
    due: closed runs that are not there yet, at the last look. freed: bytes of runs removed here
    afterwards. failures: attempts that failed; problem: what the last one failed of.
    failing: runs that could not be archived, and why; away: why none can be now, "" where they can.
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
        """How many closed runs are not there yet, those that fail among them."""
        return len(self.due)

    def looked(self, due: Sequence[str]) -> None:
        """Take down what is to be archived; of what is gone it is no matter that it failed."""
        self.due = tuple(due)
        self.failing = {run: why for run, why in self.failing.items() if run in due}

    def took(self, run: str, nbytes: int) -> None:
        """Count a run."""
        self.runs += 1
        self.bytes += nbytes
        self.looked([one for one in self.due if one != run])

    def failed(self, problem: str, run: str = "") -> None:
        """Count an attempt that failed: of one run, or of the archive as a whole."""
        self.failures += 1
        self.problem = problem
        if run:
            self.failing = {**self.failing, run: problem}
        else:
            self.away = problem


class Tally:
    """Totals since the collector was made; any thread may add.

    records: by result: "stored", "dup" (already there) and "rejected".
    nbytes: of values stored. damaged: values and messages that did not fit their checksum.
    refused: calls that were refused, by the kind of the refusal.
    dropped: observations that clients, or the store for want of room, left out, by reason.
    roster: the streams that are open. archive: None where nothing is archived.
    commits: how many took how long, one entry for each of `SECONDS` and one beyond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.records: Counter[str] = Counter({"stored": 0, "dup": 0, "rejected": 0})
        self.nbytes = 0
        self.damaged = 0
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.roster = Roster()
        self.archive: ArchiveTally | None = None
        self.streams = 0
        self.commits = [0] * (len(SECONDS) + 1)
        self.commit_seconds = 0.0

    def add(self, result: str, records: int, nbytes: int = 0) -> None:
        """Count records, and bytes of values."""
        with self._lock:
            self.records[result] += records
            self.nbytes += nbytes

    def damage(self) -> None:
        """Count a value or a message that did not fit its checksum."""
        with self._lock:
            self.damaged += 1

    def refuse(self, kind: str) -> None:
        """Count a refusal."""
        with self._lock:
            self.refused[kind] += 1

    def drop(self, reason: str, observations: int) -> None:
        """Count what was left out."""
        with self._lock:
            known = reason in self.dropped or len(self.dropped) < _REASONS
            self.dropped[reason if known else "other"] += observations

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Times what happens inside as one commit."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        with self._lock:
            self.commits[bisect_left(SECONDS, seconds)] += 1
            self.commit_seconds += seconds
