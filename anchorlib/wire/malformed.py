"""What a message may not be."""

from __future__ import annotations

from anchorlib.errors import AnchorError

__all__ = ["FrameError"]


class FrameError(AnchorError, ValueError):
    """A message that no encoder of this protocol makes."""
