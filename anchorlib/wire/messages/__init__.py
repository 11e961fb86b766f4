"""Messages as bytes: frames of records, gaps and lineage, and the checksum of each message.

A frame is a message with a number of records: their rows, and their values as its payload.

framing      a frame as bytes; its payload is neither copied into the message nor out of it
encoder      makes frames of blocks of records
decoder      makes blocks of records of frames, and checks everything in them
row_columns  the rows of a frame as columns
numbering    reads a finished frame and changes the numbers of its records
gaps         how many observations were not recorded, and why
lineage      what values were computed from, entries of headers, and traced operations
texts        names, kinds, modes, phases and reasons, checked
checksum     the checksum that ends each message: a flipped bit on the wire is found here
malformed    the error of a message that breaks the protocol
"""

from anchorlib.wire.messages.checksum import GarbledError, check_of, check_seal, sealed
from anchorlib.wire.messages.decoder import Decoder, ParsedFrame, parse_request
from anchorlib.wire.messages.encoder import EncodedFrame, Encoder, frame_weights
from anchorlib.wire.messages.framing import Buffer
from anchorlib.wire.messages.gaps import gaps_message, read_gaps
from anchorlib.wire.messages.lineage import (
    header_message,
    lineage_messages,
    operations_messages,
    read_header,
    read_lineage,
    read_operations,
)
from anchorlib.wire.messages.malformed import FrameError
from anchorlib.wire.messages.numbering import (
    TableSizes,
    first_of,
    kept_definition,
    kept_frame,
    renumbered,
    table_sizes,
)
from anchorlib.wire.messages.row_columns import entries

__all__ = [
    "Buffer",
    "Decoder",
    "EncodedFrame",
    "Encoder",
    "FrameError",
    "GarbledError",
    "ParsedFrame",
    "TableSizes",
    "check_of",
    "check_seal",
    "entries",
    "first_of",
    "frame_weights",
    "gaps_message",
    "header_message",
    "kept_definition",
    "kept_frame",
    "lineage_messages",
    "operations_messages",
    "parse_request",
    "read_gaps",
    "read_header",
    "read_lineage",
    "read_operations",
    "renumbered",
    "sealed",
    "table_sizes",
]
