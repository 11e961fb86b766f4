"""What is counted of one phase inside the step that is open: its pass, and the calls in it."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

__all__ = ["Passes"]


class Passes:
    """The passes of one phase inside one step.

    calls: of each counter, what gives its next number. Taking one needs no lock, which would cost
        as much as all the rest.
    """

    __slots__ = ("calls", "gradient_seen", "index", "ready", "roots", "started", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.index = 0
        self.started = False
        self.gradient_seen = False
        self.ready = False  # a hook that will see this pass's gradient is in place
        self.calls: dict[Hashable, count[int]] = {}
        self.roots: set[int] = set()

    def next(self) -> None:
        """Go on to the next pass, which has not begun."""
        self.index += 1
        self.started = self.gradient_seen = self.ready = False
        self.calls = {}
        self.roots.clear()

    def call(self, counters: tuple[Hashable, ...]) -> int:
        """The next number, which is the same for all of these counters."""
        calls = self.calls
        n = max(next(calls.setdefault(counter, count())) for counter in counters)
        if len(counters) > 1:
            calls.update((counter, count(n + 1)) for counter in counters)
        return n
