"""When somebody last read: a collector that ends waits for readers in the middle of something."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Readers"]

_QUIET_SECONDS: Final = 2.0  # what reads a run asks again sooner, many times
_LOOK_SECONDS: Final = 0.05


class Readers:
    """All who read from a collector; any thread may tell of one."""

    def __init__(self) -> None:
        self._heard = float("-inf")

    def hear(self) -> None:
        """Somebody asked for something just now."""
        self._heard = time.monotonic()

    def wait_quiet(self, over: float) -> None:
        """Returns once nobody has asked for two seconds, at `over` (monotonic) at the latest."""
        while time.monotonic() < min(over, self._heard + _QUIET_SECONDS):
            time.sleep(_LOOK_SECONDS)
