"""Versions of the protocol: which a collector takes, and of which spools are delivered.

A writer speaks one version, `PROTOCOL`. A collector, and `anchor push`, take the one before as
well, so that collectors are upgraded first and trainings go on.
"""

from __future__ import annotations

from typing import Final

from anchorlib.wire.limits import PROTOCOL

__all__ = ["PROTOCOLS", "why_not_delivered", "why_not_taken"]

PROTOCOLS: Final = range(PROTOCOL - 1, PROTOCOL + 1)
"""The versions that are taken."""

_TAKEN: Final = " and ".join(map(str, PROTOCOLS))


def why_not_taken(version: int) -> str:
    """What a collector answers a writer of a version that it does not take; "" where it does."""
    if version in PROTOCOLS:
        return ""
    todo = "upgrade anchorlib where the training runs, and start it again"
    if version > PROTOCOL:
        todo = "upgrade the collector first, then those who train"
    return f"the client speaks version {version} of the protocol, this collector {_TAKEN}: {todo}"


def why_not_delivered(version: int) -> str:
    """What whoever pushes a spool of another version is told; "" where it can be delivered."""
    if version in PROTOCOLS:
        return ""
    todo = "with the anchorlib that left it push it into a directory, which later ones read"
    if version > PROTOCOL:
        todo = "upgrade anchorlib here"
    return f"it speaks version {version} of the protocol, this anchorlib {_TAKEN}: {todo}"
