"""The time of an arm's turn: wall time, and CPU time of this process and of its children.

Arms take turns in one process; a ratio is taken round by round, as in `benchmarks.timing`.
Here the smallest ratio is reported as well: it is nearest to the cost of the arms themselves, since
other load on the machine added least to it.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.timing import Ratio

__all__ = ["Arm", "Turn", "children_cpu", "over", "taken_in_turns", "told", "wait_for_children"]


def nothing() -> None:
    """The settling of an arm that stores nothing."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Work, and the call that settles it (a flush)."""

    work: Callable[[], object]
    settle: Callable[[], object] = nothing


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, in seconds.

    wall, thread: of the work alone; thread: CPU of this thread.
    flushed: wall time until it was settled.
    trainer, both: CPU of this process, and of its children as well, until it was settled.
    """

    wall: float
    thread: float
    flushed: float
    trainer: float
    both: float


def taken(arm: Arm) -> Turn:
    """One turn, without the garbage of the one before; what it makes itself is part of it."""
    gc.collect()
    children = children_cpu()
    wall, thread, trainer = time.perf_counter(), time.thread_time(), time.process_time()
    arm.work()
    worked, worked_thread = time.perf_counter() - wall, time.thread_time() - thread
    arm.settle()
    flushed, trainer = time.perf_counter() - wall, time.process_time() - trainer
    return Turn(worked, worked_thread, flushed, trainer, trainer + children_cpu() - children)


def taken_in_turns(arms: Mapping[str, Arm], rounds: int, warm: int = 2) -> dict[str, list[Turn]]:
    """Every arm so many times, in a new order each round; `warm` rounds before do not count."""
    turns: dict[str, list[Turn]] = {name: [] for name in arms}
    order = random.Random(0)
    for number in range(warm + rounds):
        if number == warm:
            wait_for_children()
        names = list(arms)
        order.shuffle(names)
        for name in names:
            turn = taken(arms[name])
            if number >= warm:
                turns[name].append(turn)
    return turns


def over(turns: list[Turn], base: list[Turn], clock: str) -> Ratio:
    """`turns` over `base` on one clock, round by round.

    What was not observed has nothing to settle, and no process beside it: it is as far at the end
    of its work.
    """
    clocks = {"flushed": "wall", "both": "trainer"}
    pairs = zip(turns, base, strict=True)
    return told([getattr(a, clock) / getattr(b, clocks.get(clock, clock)) for a, b in pairs])


def told(figures: list[float]) -> Ratio:
    """A Ratio with the median, and with the smallest and the largest in place of quartiles."""
    return Ratio(statistics.median(figures), min(figures), max(figures))


def children_cpu() -> float:
    """CPU seconds so far of all processes below this one: those that live, and its own ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(cpu_of, below(os.getpid())))


def below(process: int) -> list[int]:
    """The processes that live and that `process` began, or one of them; none without /proc."""
    began: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # A command's name, in brackets, may hold anything; state and parent come behind it.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            began.setdefault(parent, []).append(int(path.parent.name))
    found = [process]
    for one in found:
        found += began.get(one, [])
    return found[1:]


def cpu_of(process: int) -> float:
    """CPU seconds of a process that lives, and of its children that have ended; else 0.

    Its clock counts nanoseconds, /proc/PID/stat hundredths of a second: a tenth of some turns. Of
    children that have ended (a recorder's compiler) nothing else tells.
    """
    with suppress(OSError):
        told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ended = sum(map(int, told[13:15])) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime((~process << 3) | 2) + ended  # as clock_getcpuclockid makes it
    return 0.0


def wait_for_children(most: float = 120) -> None:
    """Until none of them works: a compiler, begun by a session, would count as its recorder."""
    until = time.monotonic() + most
    while time.monotonic() < until:
        before = children_cpu()
        time.sleep(0.5)
        if children_cpu() - before < 0.02:
            return
