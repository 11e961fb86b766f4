"""The wire: records, and files of a store, between processes.

    Record ─Encoder─▶ frames ─Outbox─▶ PushStream ══gRPC══▶ collector ─Decoder─▶ Record
    zarr   ◀──────── ReaderClient ◀════════════════gRPC════ collector ◀───────── files

address    URLs
channel    channels, TLS, tokens
framing    a frame as bytes, its payload in place
encoder    records to frames
decoder    frames to records, nothing trusted
outbox     what a writer has to say, until the collector has it
push       one stream to a collector
reader     the client of the second service
services   the two services, to serve and to call
failures   what a failed call means
gaps       gap statements as messages
lineage    what values were computed from, as messages
texts      what may name a series
limits     what both ends agree on
v1         generated from proto/
"""

from anchorlib.wire.address import (
    DEFAULT_PORT,
    Address,
    is_address,
    is_loopback,
    parse_address,
)
from anchorlib.wire.channel import KEEPALIVE_SECONDS, Credentials, open_channel
from anchorlib.wire.decoder import DamagedError, Decoder, Framed, FrameError, parse_request
from anchorlib.wire.encoder import Encoded, Encoder, frame_weight
from anchorlib.wire.failures import STOPPING, Failure, failure
from anchorlib.wire.gaps import read_gaps
from anchorlib.wire.limits import (
    FRAME_BYTES,
    HEADER_BYTES,
    LISTED_BYTES,
    MESSAGE_BYTES,
    PROTOCOL,
    READ_BYTES,
    RECORD_BYTES,
    WINDOW,
)
from anchorlib.wire.lineage import read_lineage
from anchorlib.wire.outbox import Outbox
from anchorlib.wire.push import PushStream, writer_name
from anchorlib.wire.reader import ReaderClient
from anchorlib.wire.services import push_handler
from anchorlib.wire.v1.collector_pb2 import (
    DURABILITY_POWER,
    DURABILITY_PROCESS,
    Ack,
    Closed,
    Flushed,
    GetReply,
    GetRequest,
    Hello,
    ListReply,
    ListRequest,
    PushReply,
    PushRequest,
    Resume,
)
from anchorlib.wire.v1.collector_pb2_grpc import (
    ReaderServicer,
    add_ReaderServicer_to_server,
)

__all__ = [
    "DEFAULT_PORT",
    "DURABILITY_POWER",
    "DURABILITY_PROCESS",
    "FRAME_BYTES",
    "HEADER_BYTES",
    "KEEPALIVE_SECONDS",
    "LISTED_BYTES",
    "MESSAGE_BYTES",
    "PROTOCOL",
    "READ_BYTES",
    "RECORD_BYTES",
    "STOPPING",
    "WINDOW",
    "Ack",
    "Address",
    "Closed",
    "Credentials",
    "DamagedError",
    "Decoder",
    "Encoded",
    "Encoder",
    "Failure",
    "Flushed",
    "FrameError",
    "Framed",
    "GetReply",
    "GetRequest",
    "Hello",
    "ListReply",
    "ListRequest",
    "Outbox",
    "PushReply",
    "PushRequest",
    "PushStream",
    "ReaderClient",
    "ReaderServicer",
    "Resume",
    "add_ReaderServicer_to_server",
    "failure",
    "frame_weight",
    "is_address",
    "is_loopback",
    "open_channel",
    "parse_address",
    "parse_request",
    "push_handler",
    "read_gaps",
    "read_lineage",
    "writer_name",
]
