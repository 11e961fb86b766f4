"""Which runs go, by age, number and size; a calculation that touches no file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Limits", "RunFacts", "chosen"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run that may go.

    closed: its sessions have all ended as they should. written: a living process writes it.
    bytes: on disk; none of a link, which is no run of its own. written_ns: when something was last
        written to it.
    """

    run: str
    closed: bool
    written: bool
    bytes: int
    written_ns: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may stay; None sets no limit.

    before_ns: what was last written to before this time goes.
    keep_last: so many of the newest closed runs stay, whatever else is said; alone, the other
        closed runs go.
    max_bytes: the oldest closed runs go until the rest fits.
    """

    before_ns: int | None = None
    keep_last: int | None = None
    max_bytes: int | None = None


def chosen(runs: Iterable[RunFacts], limits: Limits) -> list[RunFacts]:
    """The runs that go, the oldest first.

    What a living process writes neither goes nor counts, and no more does a link: as a second name
    of the newest run it would be kept in its place. A run that was never closed (its trainer
    died, or cannot reach its collector just now) goes by its age alone.
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


def _last(closed: list[RunFacts], limits: Limits) -> list[RunFacts]:
    return closed[-limits.keep_last :] if limits.keep_last else []


def _fitting(
    idle: list[RunFacts], free: list[RunFacts], going: list[RunFacts], most: int
) -> list[RunFacts]:
    """What goes already, and the oldest closed runs until what stays takes `most` bytes."""
    left = sum(run.bytes for run in idle) - sum(run.bytes for run in going)
    found = set(going)
    for run in free:
        if left <= most:
            break
        if run.closed and run not in found:
            found.add(run)
            left -= run.bytes
    return [run for run in free if run in found]
