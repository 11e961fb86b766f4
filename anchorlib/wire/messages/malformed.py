"""The error of a message that breaks the protocol."""

from __future__ import annotations

from anchorlib.errors import AnchorError

__all__ = ["FrameError"]


class FrameError(AnchorError, ValueError):
    """A message, or an order of messages, that no peer of this protocol sends."""
