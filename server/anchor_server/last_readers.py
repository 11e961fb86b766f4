"""Lets a collector that stops wait for readers who are not done yet.

Reading a run takes many calls, and no call says that it is the last. So a reader counts as done
when it has not called for two seconds.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Readers"]

_QUIET_SECONDS: Final = 2.0  # a reader in the middle of a run calls again sooner than this
_LOOK_SECONDS: Final = 0.05


class Readers:
    """Remembers when any reader last called; any thread may call the methods."""

    def __init__(self) -> None:
        self._heard = float("-inf")

    def hear(self) -> None:
        """Notes that a reader called just now."""
        self._heard = time.monotonic()

    def wait_quiet(self, over: float) -> None:
        """Waits until no reader has called for two seconds, but at most until `over`.

        over: a time as `time.monotonic()` counts.
        """
        while time.monotonic() < min(over, self._heard + _QUIET_SECONDS):
            time.sleep(_LOOK_SECONDS)
