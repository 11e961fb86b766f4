"""Fair timing on a shared machine: arms take turns, and only ratios within one run are told.

Each round runs every arm once, in a new order; a ratio is taken round by round, so that a slow
minute slows both sides of it. What is reported is the median with the quartiles beside it.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Ratio", "Sample", "Samples", "interleaved", "ratio", "timed", "touch_memory"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one arm, in seconds: wall, CPU of this thread, CPU of the whole process."""

    wall: float
    thread: float
    process: float


Samples = Mapping[str, list[Sample]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of some figures, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: list[float]) -> Ratio:
        """The median and quartiles of `figures`."""
        if len(figures) < 2:
            return cls(figures[0], figures[0], figures[0])
        low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(median, low, high)

    def scaled(self, by: float) -> Ratio:
        """Every figure times `by`."""
        return Ratio(self.median * by, self.low * by, self.high * by)


def touch_memory(gigabytes: int = 4) -> None:
    """Touches memory and gives it back, for the page cache to use.

    A virtual machine gets memory from its host page by page, at 1 to 2 ms a MB where these figures
    were first taken. Whichever arm wrote to new pages first would have paid for all the others.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    with mmap.mmap(-1, min(gigabytes << 30, max(free // 2, mmap.PAGESIZE))) as pages:
        for start in range(0, len(pages), mmap.PAGESIZE):
            pages[start] = 1


def interleaved(
    arms: Mapping[str, Callable[[], object]], *, rounds: int = 7, warm: int = 1
) -> dict[str, list[Sample]]:
    """Runs every arm `rounds` times, taking turns; `warm` rounds before are not counted."""
    found: dict[str, list[Sample]] = {name: [] for name in arms}
    turns = random.Random(0)
    for number in range(rounds + warm):
        names = list(arms)
        turns.shuffle(names)
        for name in names:
            sample = timed(arms[name])
            if number >= warm:
                found[name].append(sample)
    return found


def timed(arm: Callable[[], object]) -> Sample:
    """One turn, without the garbage of the one before."""
    gc.collect()
    gc.disable()
    try:
        wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        arm()
        return Sample(
            time.perf_counter() - wall, time.thread_time() - thread, time.process_time() - process
        )
    finally:
        gc.enable()


def ratio(samples: Samples, arm: str, base: str, *, clock: str = "wall") -> Ratio:
    """`arm` over `base`, round by round."""
    pairs = zip(samples[arm], samples[base], strict=True)
    return Ratio.of([getattr(a, clock) / getattr(b, clock) for a, b in pairs])
