"""Memory that messages are received in, used again instead of given back each time."""

from __future__ import annotations

from typing import Final

__all__ = ["keep_memory"]

_BYTES: Final = (32 << 20) - (64 << 10)  # glibc takes no notice of more


def keep_memory() -> None:
    """Lets the allocator keep what this process frees, up to 64 MiB.

    A collector gets megabytes with each message and frees them a moment later. glibc gives blocks
    of that size back to the system at once, and fresh pages cost more than all that is done with
    what arrives in them; but it keeps blocks as large as one that was freed before (mallopt(3),
    M_MMAP_THRESHOLD). Other allocators take this for what it is: a block made and freed.
    """
    bytes(_BYTES)
