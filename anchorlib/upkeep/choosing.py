"""Which runs `anchor gc` removes, by age, number and size; pure functions that touch no file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["RetentionLimits", "RunFacts", "chosen"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a run that decide whether it is removed.

    closed: whether every rank of it was closed. written: whether a living process writes it.
    bytes: its size on disk; 0 for a symbolic link to another run. written_ns: when it was last
    written to, in nanoseconds since the epoch.
    """

    run: str
    closed: bool
    written: bool
    bytes: int
    written_ns: int


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits by which old runs are removed; None sets no limit.

    before_ns: runs that were last written before this time (ns since the epoch) are removed.
    keep_last: this many of the newest closed runs stay, whatever the other limits say. If it is the
        only limit, all other closed runs are removed.
    max_bytes: the oldest closed runs are removed until all remaining runs together take no more.
    """

    before_ns: int | None = None
    keep_last: int | None = None
    max_bytes: int | None = None


def chosen(runs: Iterable[RunFacts], limits: RetentionLimits) -> list[RunFacts]:
    """Return the runs that the limits remove, the oldest first.

    A run that a living process writes is neither removed nor counted. A symbolic link to a run is
    not either, as a second name of the newest run would count as one of the runs to keep. A run
    that was never closed (its trainer died, or cannot reach its collector just now) is removed only
    because of its age (`before_ns`).
    """
    own = [run for run in runs if run.bytes and not run.written]
    idle = sorted(own, key=lambda run: run.written_ns)
    closed = [run for run in idle if run.closed]
    kept = set() if limits.keep_last is None else {run.run for run in _last(closed, limits)}
    free = [run for run in idle if run.run not in kept]
    going = [run for run in free if limits.before_ns and run.written_ns < limits.before_ns]
    if limits.before_ns is None and limits.max_bytes is None and limits.keep_last is not None:
        going = [run for run in free if run.closed]
    if limits.max_bytes is not None:
        going = _fitting(idle, free, going, limits.max_bytes)
    return going


def _last(closed: list[RunFacts], limits: RetentionLimits) -> list[RunFacts]:
    return closed[-limits.keep_last :] if limits.keep_last else []


def _fitting(
    idle: list[RunFacts], free: list[RunFacts], going: list[RunFacts], most: int
) -> list[RunFacts]:
    """Return the runs to remove so that the remaining runs take at most `most` bytes.

    These are the runs of `going`, and as many closed runs of `free` as necessary, the oldest first;
    the result is sorted by age. Where removing all closed runs of `free` is not enough, all of them
    are returned.

    idle: all runs that count. free: the runs of `idle` that `keep_last` does not keep. Both are
        sorted by age, oldest first. going: the runs of `free` that are removed in any case.
    """
    left = sum(run.bytes for run in idle) - sum(run.bytes for run in going)
    leaving = set(going)
    for run in free:
        if left <= most:
            break
        if run.closed and run not in leaving:
            leaving.add(run)
            left -= run.bytes
    return [run for run in free if run in leaving]
