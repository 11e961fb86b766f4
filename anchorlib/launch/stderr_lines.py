"""Lines on stderr for the person who typed `anchor run`."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Write `text` as a line of its own to stderr, or do nothing if the program closed stderr."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"anchor: {text}\n")
        sys.stderr.flush()
