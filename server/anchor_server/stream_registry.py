"""Which ranks are written now, and how fast: the roster has a seat (an entry) for each open stream.

The stream tells its seat what arrives and what is stored; whoever asks gets rates, lag and backlog.

with roster.seat("run1", 0, "node7", committed=0) as seat:
    seat.hear(), seat.store(records=5, nbytes=80, newest_ns=…), seat.tell_end(9)
roster.states()  ─▶ [StreamState(run="run1", rank=0, …)]
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

__all__ = ["PACE_SECONDS", "StreamEntry", "StreamRegistry", "StreamState"]

PACE_SECONDS: Final = 60
"""The span in seconds over which records and bytes a second are averaged."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """What is known of one open stream (Push call of a trainer) at this moment.

    host: the machine of the trainer.
    since_ns, last_seen_ns: when the stream began, and when its client last sent something; both in
        nanoseconds since the epoch.
    records_per_second, bytes_per_second: means over the last minute, or since the stream began, of
        the records and bytes that were stored.
    lag: seconds from the time stamp of the last stored record to its commit; None before the first
        record.
    backlog: how many of the records that the trainer has reported as made are not stored yet; None
        where it has reported nothing.
    committed: how many of the trainer's records are stored, here or at a collector that it used
        before.
    """

    run: str
    rank: int
    host: str
    since_ns: int
    last_seen_ns: int
    records_per_second: float
    bytes_per_second: float
    lag: float | None
    backlog: int | None
    committed: int


class _Pace:
    """The rate at which a stream's records and bytes were stored in the last minute.

    It keeps one sum for each second in which records were stored.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._sums: deque[tuple[int, int, int]] = deque()

    def add(self, records: int, nbytes: int) -> None:
        second = int(time.monotonic())
        if self._sums and self._sums[-1][0] == second:
            _, more, larger = self._sums.pop()
            records, nbytes = records + more, nbytes + larger
        self._sums.append((second, records, nbytes))
        self._forget()

    def rates(self) -> tuple[float, float]:
        """Returns (records, bytes) a second, as means over the last minute or since the beginning.

        A stream younger than a second counts as one second old: else its rates would be too high.
        """
        self._forget()
        seconds = min(max(time.monotonic() - self._began, 1.0), float(PACE_SECONDS))
        records = sum(one for _, one, _ in self._sums)
        nbytes = sum(one for _, _, one in self._sums)
        return records / seconds, nbytes / seconds

    def _forget(self) -> None:
        oldest = time.monotonic() - PACE_SECONDS
        while self._sums and self._sums[0][0] < oldest:
            self._sums.popleft()


class StreamEntry:
    """The entry of one stream (Push call) in the roster of open streams.

    The stream's thread changes the entry, any thread may read it.

    host: the machine of the trainer.
    committed: how many of the trainer's records are stored when the stream begins.
    """

    def __init__(self, run: str, rank: int, host: str, committed: int) -> None:
        self._run, self._rank, self._host = run, rank, host
        self._since = self._seen = time.time_ns()
        self._lock = threading.Lock()
        self._pace = _Pace()
        self._committed = committed
        self._lag: float | None = None
        self._end: int | None = None

    def hear(self) -> None:
        """Notes that the client sent something now."""
        self._seen = time.time_ns()

    def tell_end(self, end: int) -> None:
        """Notes how many records the client has made so far, as its Backlog message says."""
        self._end = end

    def store(self, records: int, nbytes: int, newest_ns: int) -> None:
        """Notes that records were committed.

        records, nbytes: how many records, and how many bytes of values they have.
        newest_ns: the time stamp of the last of these records, in nanoseconds since the epoch.
        """
        lag = max(time.time_ns() - newest_ns, 0) / 1e9  # the clock of a trainer may be ahead
        with self._lock:
            self._committed += records
            self._lag = lag
            self._pace.add(records, nbytes)

    def state(self) -> StreamState:
        """Returns the state of the stream at this moment."""
        with self._lock:
            rates, committed, lag = self._pace.rates(), self._committed, self._lag
        backlog = None if self._end is None else max(self._end - committed, 0)
        where = (self._run, self._rank, self._host, self._since, self._seen)
        return StreamState(*where, *rates, lag, backlog, committed)


class StreamRegistry:
    """The roster: the entries (seats) of all open streams, Push calls of trainers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seats: set[StreamEntry] = set()

    @contextmanager
    def seat(self, run: str, rank: int, host: str, committed: int) -> Iterator[StreamEntry]:
        """Adds an entry for a stream and yields it; removes it when the context ends.

        host: the machine of the trainer.
        committed: how many of the trainer's records are in the store already.
        """
        seat = StreamEntry(run, rank, host, committed)
        with self._lock:
            self._seats.add(seat)
        try:
            yield seat
        finally:
            with self._lock:
                self._seats.discard(seat)

    def states(self) -> list[StreamState]:
        """Returns the state of every open stream, sorted by run and rank."""
        with self._lock:
            seats = list(self._seats)
        return sorted((seat.state() for seat in seats), key=lambda one: (one.run, one.rank))
