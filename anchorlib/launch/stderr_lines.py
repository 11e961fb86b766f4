"""Lines on stderr for the person who typed `anchor run`."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Write one line to stderr; does nothing where the program has closed it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"anchor: {text}\n")
        sys.stderr.flush()
