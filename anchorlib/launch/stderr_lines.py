"""Lines on stderr for the person who typed `anchor run`."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Write `anchor: ` and `text` as a line to stderr; do nothing if the program closed stderr."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"anchor: {text}\n")
        sys.stderr.flush()
