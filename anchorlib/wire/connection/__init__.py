"""gRPC between a collector and its clients: channels, the three services, and how calls fail.

loading        imports gRPC in such a way that it writes nothing to stderr
channel        opens channels to a collector
services       the three services (Collector, Reader, Keeper), to serve and to call
failure_kinds  the kinds of failure
failures       what a failed call means, as a kind and as a sentence
"""

from anchorlib.wire.connection.channel import KEEPALIVE_SECONDS, PING_SECONDS, open_channel
from anchorlib.wire.connection.failure_kinds import KIND_KEY, FailureKind, code_of, kind_of
from anchorlib.wire.connection.failures import Failure, failure
from anchorlib.wire.connection.loading import grpc
from anchorlib.wire.connection.services import (
    ReadCall,
    keep_call,
    keeper_handler,
    parse_reply,
    push_call,
    push_handler,
    read_calls,
    reader_handler,
)

__all__ = [
    "KEEPALIVE_SECONDS",
    "KIND_KEY",
    "PING_SECONDS",
    "Failure",
    "FailureKind",
    "ReadCall",
    "code_of",
    "failure",
    "grpc",
    "keep_call",
    "keeper_handler",
    "kind_of",
    "open_channel",
    "parse_reply",
    "push_call",
    "push_handler",
    "read_calls",
    "reader_handler",
]
