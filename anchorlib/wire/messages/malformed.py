"""The error of a message that breaks the protocol."""

from __future__ import annotations

from anchorlib.errors import AnchorError

__all__ = ["FrameError"]


class FrameError(AnchorError, ValueError):
    """Raised for a message, or an order of messages, that breaks the protocol."""
