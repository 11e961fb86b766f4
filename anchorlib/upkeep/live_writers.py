"""Finds the ranks that living processes write now into a directory or to a collector."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.errors import AnchorError
from anchorlib.store import (
    HeldRank,
    LocalLocation,
    RankReader,
    held_ranks,
    run_directory,
)

if TYPE_CHECKING:
    from anchorlib.wire import KeeperClient
    from anchorlib.wire import Writing as Told

__all__ = ["Writing", "writings_at", "writings_in"]


@dataclass(frozen=True, slots=True)
class Writing:
    """A rank of a run that a living process is writing; what the store cannot know is None.

    host: the machine of the process that writes the rank; in a directory that a collector serves,
        the machine of the collector.
    since_ns: when the process began to write the rank, or to send to the collector, in nanoseconds
        since the epoch.
    records_per_second, bytes_per_second: means over the last minute, of the records committed and
        the bytes of their values.
    lag: how many seconds after its time stamp the last record was committed.
    backlog: how many records wait in the writing process, not yet committed.
    last_seen_ns: when the collector last heard of the writer; in a directory, the time stamp of the
        last record; nanoseconds since the epoch.
    """

    run: str
    rank: int
    host: str | None
    since_ns: int | None
    records_per_second: float | None = None
    bytes_per_second: float | None = None
    lag: float | None = None
    backlog: int | None = None
    last_seen_ns: int | None = None


def writings_in(store: Path) -> list[Writing]:
    """Return the ranks of a directory that are being written, as their lock files say.

    Rates, lag and backlog are None. Raises StoreError where the lock files cannot be listed.
    """
    return [_local(store, held) for held in held_ranks(store)]


def writings_at(client: KeeperClient) -> list[Writing]:
    """Return the ranks that are being written to a collector, of the runs that the client may read.

    Raises CollectorError where the collector refuses or cannot be reached.
    """
    return [_writing(one) for one in client.status()]


def _local(store: Path, held: HeldRank) -> Writing:
    seen = _last_record_ns(store, held)
    return Writing(held.run, held.rank, held.host, held.since_ns, last_seen_ns=seen)


def _last_record_ns(store: Path, held: HeldRank) -> int | None:
    try:
        run = LocalLocation(run_directory(store, held.run))
        reader = RankReader(run, held.rank, part=held.part)
        if not reader.committed:
            return None
        last = reader.span("time_ns", reader.committed - 1, reader.committed)
    except AnchorError:  # a rank that is being made or is damaged is written all the same
        return None
    return min(int(last[0]), time.time_ns())


def _writing(one: Told) -> Writing:
    return Writing(
        run=one.run,
        rank=one.rank,
        host=one.host or None,
        since_ns=one.since_ns,
        records_per_second=_finite(one.records_per_second),
        bytes_per_second=_finite(one.bytes_per_second),
        lag=_finite(one.lag) if one.HasField("lag") else None,
        backlog=one.backlog if one.HasField("backlog") else None,
        last_seen_ns=one.last_seen_ns,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
