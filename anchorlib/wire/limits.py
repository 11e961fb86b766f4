"""What the two ends of the wire agree on, and what a collector accepts at most."""

from __future__ import annotations

from typing import Final

__all__ = [
    "FRAME_BYTES",
    "HEADER_BYTES",
    "LISTED_BYTES",
    "MAX_DIMS",
    "MAX_ELEMENTS",
    "MESSAGE_BYTES",
    "PROTOCOL",
    "READ_BYTES",
    "RECORD_BYTES",
    "TABLE_ENTRIES",
    "TEXT_BYTES",
    "WINDOW",
]

PROTOCOL: Final = 1
"""The version both ends have to speak."""

FRAME_BYTES: Final = 1 << 20
"""A writer closes a frame here, rows and payload together; larger records come in fragments."""

WINDOW: Final = 32
"""Frames that a writer sends ahead of the collector's answer."""

MESSAGE_BYTES: Final = 8 << 20
"""No message is larger."""

READ_BYTES: Final = 4 << 20
"""The most that one Get carries."""

LISTED_BYTES: Final = 1 << 20
"""The most that one List carries, of names."""

RECORD_BYTES: Final = 1 << 34
"""The most raw storage of one record: 16 GiB."""

MAX_DIMS: Final = 64  # numpy's own limit
MAX_ELEMENTS: Final = 1 << 40
TEXT_BYTES: Final = 1024  # of a name, kind, mode, phase or reason, in UTF-8
HEADER_BYTES: Final = 4 << 20  # of a run header, as JSON
TABLE_ENTRIES: Final = 1 << 22  # series, layouts or phases that one stream defines
