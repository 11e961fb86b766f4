"""The counters of one phase inside the open step: its pass, and the calls in that pass."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

__all__ = ["Passes"]


class Passes:
    """The pass that one phase has reached inside the open step, and the counters of its calls.

    A counter counts the calls of one tensor name in one mode. `calls` has for each counter an
    iterator of its numbers. `next` on an iterator needs no lock, which would cost as much as all
    other counting.

    step: the open step's number.
    """

    __slots__ = ("calls", "gradient_seen", "index", "ready", "roots", "started", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.index = 0
        self.started = False
        self.gradient_seen = False
        self.ready = False  # whether a hook is in place that will notice this pass's gradient
        self.calls: dict[Hashable, count[int]] = {}
        self.roots: set[int] = set()

    def next(self) -> None:
        """Go on to the next pass: count its calls from 0 on, as not yet started."""
        self.index += 1
        self.started = self.gradient_seen = self.ready = False
        self.calls = {}
        self.roots.clear()

    def call(self, counters: tuple[Hashable, ...]) -> int:
        """Return the number of a call: the highest of the counters' next numbers.

        All these counters go on with the number after it.
        counters: keys, one for each mode of the observed name.
        """
        calls = self.calls
        n = max(next(calls.setdefault(counter, count())) for counter in counters)
        if len(counters) > 1:
            calls.update((counter, count(n + 1)) for counter in counters)
        return n
