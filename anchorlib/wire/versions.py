"""Versions of the protocol: which of them a collector accepts, and which spools can be delivered.

A writer speaks one version, `PROTOCOL`. A collector accepts also the version before `PROTOCOL`, so
that collectors can be upgraded first while trainings go on. The same versions are accepted by
`anchor push`, which delivers spools (queues of records that writers left on disk).
"""

from __future__ import annotations

from typing import Final

from anchorlib.wire.limits import PROTOCOL

__all__ = ["PROTOCOLS", "why_not_delivered", "why_not_taken"]

PROTOCOLS: Final = range(PROTOCOL - 1, PROTOCOL + 1)
"""The protocol versions that a collector, and `anchor push`, accept."""

_TAKEN: Final = " and ".join(map(str, PROTOCOLS))


def why_not_taken(version: int) -> str:
    """Return why a collector refuses clients of a protocol version; "" if it accepts them."""
    if version in PROTOCOLS:
        return ""
    todo = "upgrade anchorlib where the training runs, and start it again"
    if version > PROTOCOL:
        todo = "upgrade the collector first, then those who train"
    return f"the client speaks version {version} of the protocol, this collector {_TAKEN}: {todo}"


def why_not_delivered(version: int) -> str:
    """Return why a spool of a protocol version cannot be delivered; "" if it can be."""
    if version in PROTOCOLS:
        return ""
    todo = "with the anchorlib that left it push it into a directory, which later ones read"
    if version > PROTOCOL:
        todo = "upgrade anchorlib here"
    return f"it speaks version {version} of the protocol, this anchorlib {_TAKEN}: {todo}"
