"""Lines on stderr: what a person who typed `anchor run` has to know."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Write one line; a program that has closed its stderr is told nothing."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"anchor: {text}\n")
        sys.stderr.flush()
