"""The wire: how records, and the files of a store, travel between processes.

    Record ─Encoder─▶ frames ─Outbox─▶ PushStream ══gRPC══▶ collector ─Decoder─▶ Record
    zarr   ◀──────── ReaderClient ◀════════════════gRPC════ collector ◀───────── files

address     URLs of collectors
rendezvous  which of several collectors takes a rank
credentials certificates, keys and tokens
channel     gRPC channels to a collector
loading     gRPC, loaded so that it writes nothing to stderr
framing     a frame as bytes, its payload in place
encoder     blocks of records to frames
decoder     frames to blocks of records, nothing trusted
blocks      the rows of a frame as columns
outbox      the writer's side of Push: what waits until the collector has it
holding     records that a writer still holds, compared with those that the collector has
numbering   finished frames under other record numbers
push        one stream to a collector
asking      one question to a collector, and its answer
reader      the client of the service Reader: files of a store
keeper      the client of the service Keeper: runs measured, removed and renamed
sealing     the checksum that ends each message
malformed   the error of a message that cannot be
services    the three services, to serve and to call
kinds       the kinds of failure
failures    what a failed call means
gaps        gap statements as messages
health      whether a collector says that it is well
private     files that hold a secret
lineage     what values were computed from, as messages
texts       names, kinds, modes, phases and reasons, checked
versions    which versions of the protocol are accepted
limits      what both ends agree on, and the most that a collector accepts
v1          generated from proto/

Importing this package does not import gRPC: it comes with the first name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorlib.wire.address import (
        DEFAULT_PORT,
        Address,
        is_address,
        is_loopback,
        parse_address,
        parse_addresses,
    )
    from anchorlib.wire.channel import KEEPALIVE_SECONDS, PING_SECONDS, open_channel
    from anchorlib.wire.credentials import Credentials, check_credentials
    from anchorlib.wire.decoder import Decoder, Framed, parse_request
    from anchorlib.wire.encoder import Encoded, Encoder, frame_weights
    from anchorlib.wire.failures import Failure, failure
    from anchorlib.wire.framing import Buffer
    from anchorlib.wire.gaps import read_gaps
    from anchorlib.wire.health import ask_health
    from anchorlib.wire.holding import OTHERS, Doubt, Held, Link, doubts, held_frame
    from anchorlib.wire.keeper import KeeperClient
    from anchorlib.wire.kinds import KIND_KEY, Kind, code_of, kind_of
    from anchorlib.wire.limits import (
        AHEAD_BYTES,
        AHEAD_SHARE,
        CONFIRMED_RECORDS,
        DEFINED_BYTES,
        FRAME_BYTES,
        HANDSHAKE_SECONDS,
        HEADER_BYTES,
        HELLO_SECONDS,
        IDLE_SECONDS,
        LISTED_BYTES,
        MESSAGE_BYTES,
        PROTOCOL,
        READ_BYTES,
        RECORD_BYTES,
        REST_SECONDS,
        STALL_SECONDS,
        STREAMS,
        UNFINISHED_SHARE,
    )
    from anchorlib.wire.lineage import read_header, read_lineage, read_operations
    from anchorlib.wire.malformed import FrameError
    from anchorlib.wire.numbering import Row, defined, first_of, renumbered
    from anchorlib.wire.outbox import Frames, MemoryFrames, Outbox, close_request, gap_requests
    from anchorlib.wire.private import check_private
    from anchorlib.wire.push import PushStream, host_of, writer_name
    from anchorlib.wire.reader import ReaderClient
    from anchorlib.wire.rendezvous import Route, by_hash, failover_seconds
    from anchorlib.wire.sealing import DamagedError, check_of, check_seal, sealed
    from anchorlib.wire.services import keeper_handler, push_handler, reader_handler
    from anchorlib.wire.v1.collector_pb2 import (
        DURABILITY_POWER,
        DURABILITY_PROCESS,
        Ack,
        ArchivingTold,
        Closed,
        Confirm,
        Confirmed,
        Failing,
        Flushed,
        GetReply,
        GetRequest,
        Hello,
        Lineage,
        ListReply,
        ListRequest,
        MeasureReply,
        MeasureRequest,
        Part,
        PushReply,
        PushRequest,
        RemoveReply,
        RemoveRequest,
        RenameReply,
        RenameRequest,
        Resume,
        StatusReply,
        StatusRequest,
        Writing,
    )
    from anchorlib.wire.versions import PROTOCOLS, why_not_delivered, why_not_taken

__all__ = [
    "AHEAD_BYTES",
    "AHEAD_SHARE",
    "CONFIRMED_RECORDS",
    "DEFAULT_PORT",
    "DEFINED_BYTES",
    "DURABILITY_POWER",
    "DURABILITY_PROCESS",
    "FRAME_BYTES",
    "HANDSHAKE_SECONDS",
    "HEADER_BYTES",
    "HELLO_SECONDS",
    "IDLE_SECONDS",
    "KEEPALIVE_SECONDS",
    "KIND_KEY",
    "LISTED_BYTES",
    "MESSAGE_BYTES",
    "OTHERS",
    "PING_SECONDS",
    "PROTOCOL",
    "PROTOCOLS",
    "READ_BYTES",
    "RECORD_BYTES",
    "REST_SECONDS",
    "STALL_SECONDS",
    "STREAMS",
    "UNFINISHED_SHARE",
    "Ack",
    "Address",
    "ArchivingTold",
    "Buffer",
    "Closed",
    "Confirm",
    "Confirmed",
    "Credentials",
    "DamagedError",
    "Decoder",
    "Doubt",
    "Encoded",
    "Encoder",
    "Failing",
    "Failure",
    "Flushed",
    "FrameError",
    "Framed",
    "Frames",
    "GetReply",
    "GetRequest",
    "Held",
    "Hello",
    "KeeperClient",
    "Kind",
    "Lineage",
    "Link",
    "ListReply",
    "ListRequest",
    "MeasureReply",
    "MeasureRequest",
    "MemoryFrames",
    "Outbox",
    "Part",
    "PushReply",
    "PushRequest",
    "PushStream",
    "ReaderClient",
    "RemoveReply",
    "RemoveRequest",
    "RenameReply",
    "RenameRequest",
    "Resume",
    "Route",
    "Row",
    "StatusReply",
    "StatusRequest",
    "Writing",
    "ask_health",
    "by_hash",
    "check_credentials",
    "check_of",
    "check_private",
    "check_seal",
    "close_request",
    "code_of",
    "defined",
    "doubts",
    "failover_seconds",
    "failure",
    "first_of",
    "frame_weights",
    "gap_requests",
    "held_frame",
    "host_of",
    "is_address",
    "is_loopback",
    "keeper_handler",
    "kind_of",
    "open_channel",
    "parse_address",
    "parse_addresses",
    "parse_request",
    "push_handler",
    "read_gaps",
    "read_header",
    "read_lineage",
    "read_operations",
    "reader_handler",
    "renumbered",
    "sealed",
    "why_not_delivered",
    "why_not_taken",
    "writer_name",
]

_MODULES = {
    "credentials": "Credentials check_credentials",
    "address": ("Address DEFAULT_PORT is_address is_loopback parse_address parse_addresses"),
    "channel": "KEEPALIVE_SECONDS PING_SECONDS open_channel",
    "decoder": "Decoder Framed parse_request",
    "encoder": "Encoded Encoder frame_weights",
    "failures": "Failure failure",
    "framing": "Buffer",
    "gaps": "read_gaps",
    "health": "ask_health",
    "holding": "Doubt Held Link OTHERS doubts held_frame",
    "keeper": "KeeperClient",
    "kinds": "KIND_KEY Kind code_of kind_of",
    "limits": (
        "AHEAD_BYTES AHEAD_SHARE CONFIRMED_RECORDS DEFINED_BYTES FRAME_BYTES HANDSHAKE_SECONDS "
        "HEADER_BYTES HELLO_SECONDS IDLE_SECONDS LISTED_BYTES MESSAGE_BYTES PROTOCOL "
        "READ_BYTES RECORD_BYTES REST_SECONDS STALL_SECONDS STREAMS UNFINISHED_SHARE"
    ),
    "lineage": "read_header read_lineage read_operations",
    "malformed": "FrameError",
    "numbering": "Row defined first_of renumbered",
    "outbox": "Frames MemoryFrames Outbox close_request gap_requests",
    "private": "check_private",
    "push": "PushStream host_of writer_name",
    "reader": "ReaderClient",
    "rendezvous": "Route by_hash failover_seconds",
    "sealing": "DamagedError check_of check_seal sealed",
    "services": "keeper_handler push_handler reader_handler",
    "v1.collector_pb2": (
        "Ack ArchivingTold Closed Confirm Confirmed DURABILITY_POWER DURABILITY_PROCESS "
        "Failing Flushed GetReply GetRequest Hello Lineage ListReply ListRequest MeasureReply "
        "MeasureRequest Part PushReply PushRequest RemoveReply RemoveRequest RenameReply "
        "RenameRequest Resume StatusReply StatusRequest Writing"
    ),
    "versions": "PROTOCOLS why_not_delivered why_not_taken",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module 'anchorlib.wire' has no attribute {name!r}")
    value = getattr(import_module(f"anchorlib.wire.{module}"), name)
    globals()[name] = value  # the next read of the name does not come through here
    return value
