"""What is counted of one phase inside the step that is open: its pass, and the calls in it."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Passes"]


class Passes:
    """The passes of one phase inside the current step."""

    __slots__ = ("calls", "gradient_seen", "index", "ready", "roots", "started")

    def __init__(self) -> None:
        self.index = 0
        self.started = False
        self.gradient_seen = False
        self.ready = False  # a hook that will see this pass's gradient is in place
        self.calls: dict[Hashable, int] = {}
        self.roots: set[int] = set()

    def next(self) -> None:
        """Go on to the next pass, which has not begun."""
        self.index += 1
        self.started = self.gradient_seen = self.ready = False
        self.calls.clear()
        self.roots.clear()
