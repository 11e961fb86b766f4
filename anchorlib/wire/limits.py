"""Numbers that a collector and its clients agree on, and the most that a collector accepts.

Each bound is checked before memory is allocated for what it bounds. The bounds of a client:

    one message                      MESSAGE_BYTES, also when it is unpacked; gRPC refuses more
    one text, dims, elements         TEXT_BYTES, MAX_DIMS, MAX_ELEMENTS
    one record                       RECORD_BYTES
    one stream: definitions          TABLE_ENTRIES, DEFINED_BYTES
    one Confirm                      CONFIRMED_RECORDS
    one stream: read ahead           AHEAD_BYTES; of all streams AHEAD_SHARE of the memory
    all streams: unfinished records  UNFINISHED_SHARE of the machine's memory
    streams, calls                   STREAMS (`--max-streams`), and a fixed number of other calls
    silence                          HANDSHAKE_SECONDS, HELLO_SECONDS, STALL_SECONDS, IDLE_SECONDS,
                                     REST_SECONDS (`--idle-timeout`), unanswered pings
    bytes a second, runs             `--max-rate`, `--max-runs`; for a token in the access file
    one run on disk                  `--max-run-size`, `--max-run-inodes`; for a rank `max_bytes`;
                                     a twentieth of the file system's bytes and inodes stays free
    gaps and lineage of a rank       see `anchorlib.store.write.ledgers`
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AHEAD_BYTES",
    "AHEAD_SHARE",
    "ANSWER_SECONDS",
    "CONFIRMED_RECORDS",
    "DEFINED_BYTES",
    "FRAME_BYTES",
    "HANDSHAKE_SECONDS",
    "HEADER_BYTES",
    "HELLO_SECONDS",
    "IDLE_SECONDS",
    "LISTED_BYTES",
    "MAX_DIMS",
    "MAX_ELEMENTS",
    "MESSAGE_BYTES",
    "OPERATIONS_BYTES",
    "PROTOCOL",
    "READ_BYTES",
    "RECORD_BYTES",
    "REST_SECONDS",
    "STALL_SECONDS",
    "STREAMS",
    "TABLE_ENTRIES",
    "TEXT_BYTES",
    "UNFINISHED_SHARE",
    "WINDOW",
]

PROTOCOL: Final = 3
"""The protocol version that a writer speaks; `anchorlib.wire.versions` says which are accepted."""

FRAME_BYTES: Final = 1 << 20
"""A writer fills a frame up to about so many bytes of rows and payload.

A larger record has a frame of its own; one of more than four times this is sent in fragments.
"""

WINDOW: Final = 32
"""How many frames a writer may have sent that the collector has not answered yet."""

MESSAGE_BYTES: Final = 8 << 20
"""The most bytes of one message."""

READ_BYTES: Final = 4 << 20
"""The most bytes of a file that one answer to the call Get has."""

LISTED_BYTES: Final = 1 << 20
"""The most bytes of names that one answer to the call List has."""

RECORD_BYTES: Final = 1 << 34
"""The most bytes that the values of one record may have: 16 GiB."""

MAX_DIMS: Final = 64  # numpy's own limit
MAX_ELEMENTS: Final = 1 << 40
TEXT_BYTES: Final = 1024  # of a name, kind, mode, phase or reason, in UTF-8
HEADER_BYTES: Final = 4 << 20  # of a run header, as JSON
OPERATIONS_BYTES: Final = 4 << 20  # of one entry of the operations' log, as JSON
TABLE_ENTRIES: Final = 1 << 20  # series, layouts or phases that one stream defines
DEFINED_BYTES: Final = 256 << 20  # of the messages that define them, a stream
AHEAD_BYTES: Final = 16 << 20  # of messages of a stream that wait while another is being handled
CONFIRMED_RECORDS: Final = 1 << 16  # that one Confirm may ask about: one chunk of the table
AHEAD_SHARE: Final = 0.125  # of memory, for the waiting messages of all streams
UNFINISHED_SHARE: Final = 0.25  # of memory, for records of which fragments are still to come
# A job of 256 ranks, all of which connect anew before their old streams are noticed to be dead.
STREAMS: Final = 512

HANDSHAKE_SECONDS: Final = 10  # from a connection to the HTTP/2 settings of its first call
HELLO_SECONDS: Final = 10.0  # from a stream's beginning to its Hello
STALL_SECONDS: Final = 60.0  # between two fragments of one record
ANSWER_SECONDS: Final = 120.0  # that a writer waits for any answer before it connects anew
IDLE_SECONDS: Final = 600  # of a connection without any call
REST_SECONDS: Final = 1800.0  # of a stream on which no message comes
