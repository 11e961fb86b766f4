"""The wire: how records, and the files of a store, travel between processes.

    Record ─Encoder─▶ frames ─Outbox─▶ PushStream ══gRPC══▶ collector ─Decoder─▶ Record
    zarr   ◀──────── ReaderClient ◀════════════════gRPC════ collector ◀───────── files

address       URLs of collectors
rendezvous    which of several collectors takes a rank
credentials   certificates, keys and tokens; `secret_files`: who may read the files that hold them
messages      frames (messages with records), gaps, lineage and checksums as bytes
outbox        the writer's side of the call Push: messages that wait until the collector has them
frame_queue   what an outbox needs of the queue in which frames wait, and such a queue in memory
holding       records that a writer still holds, compared with those that the collector has
connection    gRPC: channels, services, kinds of failure
clients       the clients of the three services: Collector (Push), Reader and Keeper
versions      which versions of the protocol are accepted
limits        what both ends agree on, and the most that a collector accepts
v1            generated from proto/

Importing this package does not import gRPC: a module is imported when one of its names is first
used, as in `wire.PushStream`.
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
    from anchorlib.wire.clients import (
        KeeperClient,
        PushStream,
        ReaderClient,
        ask_health,
        host_of,
        writer_name,
    )
    from anchorlib.wire.connection import (
        KEEPALIVE_SECONDS,
        KIND_KEY,
        PING_SECONDS,
        Failure,
        FailureKind,
        code_of,
        failure,
        keeper_handler,
        kind_of,
        open_channel,
        push_handler,
        reader_handler,
    )
    from anchorlib.wire.credentials import Credentials, check_credentials
    from anchorlib.wire.frame_queue import MemoryFrames
    from anchorlib.wire.holding import (
        OTHER_RECORDS,
        HeldRows,
        StoredRange,
        held_frame,
        unconfirmed_ranges,
    )
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
    from anchorlib.wire.messages import (
        Buffer,
        Decoder,
        EncodedFrame,
        Encoder,
        FrameError,
        GarbledError,
        ParsedFrame,
        TableSizes,
        check_of,
        check_seal,
        first_of,
        frame_weights,
        kept_definition,
        kept_frame,
        parse_request,
        read_gaps,
        read_header,
        read_lineage,
        read_operations,
        renumbered,
        sealed,
        table_sizes,
    )
    from anchorlib.wire.outbox import Outbox, close_request, gap_requests
    from anchorlib.wire.rendezvous import Route, by_hash, failover_seconds
    from anchorlib.wire.secret_files import check_private
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
    "OTHER_RECORDS",
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
    "Decoder",
    "EncodedFrame",
    "Encoder",
    "Failing",
    "Failure",
    "FailureKind",
    "Flushed",
    "FrameError",
    "GarbledError",
    "GetReply",
    "GetRequest",
    "HeldRows",
    "Hello",
    "KeeperClient",
    "Lineage",
    "ListReply",
    "ListRequest",
    "MeasureReply",
    "MeasureRequest",
    "MemoryFrames",
    "Outbox",
    "ParsedFrame",
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
    "StatusReply",
    "StatusRequest",
    "StoredRange",
    "TableSizes",
    "Writing",
    "ask_health",
    "by_hash",
    "check_credentials",
    "check_of",
    "check_private",
    "check_seal",
    "close_request",
    "code_of",
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
    "kept_definition",
    "kept_frame",
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
    "table_sizes",
    "unconfirmed_ranges",
    "why_not_delivered",
    "why_not_taken",
    "writer_name",
]

_MODULES = {
    "address": "Address DEFAULT_PORT is_address is_loopback parse_address parse_addresses",
    "clients": "KeeperClient PushStream ReaderClient ask_health host_of writer_name",
    "connection": (
        "Failure FailureKind KEEPALIVE_SECONDS KIND_KEY PING_SECONDS code_of failure "
        "keeper_handler kind_of open_channel push_handler reader_handler"
    ),
    "credentials": "Credentials check_credentials",
    "frame_queue": "MemoryFrames",
    "holding": "HeldRows StoredRange OTHER_RECORDS unconfirmed_ranges held_frame",
    "limits": (
        "AHEAD_BYTES AHEAD_SHARE CONFIRMED_RECORDS DEFINED_BYTES FRAME_BYTES HANDSHAKE_SECONDS "
        "HEADER_BYTES HELLO_SECONDS IDLE_SECONDS LISTED_BYTES MESSAGE_BYTES PROTOCOL READ_BYTES "
        "RECORD_BYTES REST_SECONDS STALL_SECONDS STREAMS UNFINISHED_SHARE"
    ),
    "messages": (
        "Buffer GarbledError Decoder EncodedFrame Encoder FrameError ParsedFrame TableSizes "
        "check_of check_seal first_of frame_weights kept_definition kept_frame parse_request "
        "read_gaps read_header read_lineage read_operations renumbered sealed table_sizes"
    ),
    "outbox": "Outbox close_request gap_requests",
    "rendezvous": "Route by_hash failover_seconds",
    "secret_files": "check_private",
    "v1.collector_pb2": (
        "Ack ArchivingTold Closed Confirm Confirmed DURABILITY_POWER DURABILITY_PROCESS Failing "
        "Flushed GetReply GetRequest Hello Lineage ListReply ListRequest MeasureReply "
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
