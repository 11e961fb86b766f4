"""Makes glibc keep the freed memory of received messages, for the messages that come next."""

from __future__ import annotations

from typing import Final

__all__ = ["keep_memory"]

_BYTES: Final = (32 << 20) - (64 << 10)  # glibc does not raise its threshold for larger blocks


def keep_memory() -> None:
    """Lets the allocator keep memory that this process frees, up to 64 MiB.

    A collector gets megabytes with each message and frees them a moment later. glibc gives blocks
    of that size back to the system at once, and fresh pages then cost more time than all other work
    on a message; but glibc keeps blocks that are no larger than one which was freed before
    (mallopt(3), M_MMAP_THRESHOLD). So one large block is made and freed here. With another
    allocator this has no effect.
    """
    bytes(_BYTES)
