"""The kinds of failure that calls to a collector end with.

A collector sends the kind of every refusal in the call's trailing metadata, under `KIND_KEY`. A
client decides by the kind what it does about a failure; the text of the error is for people. A
failure that comes with no kind was caused by gRPC itself, by the network, or by a server that is no
collector: then the gRPC status code decides its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from anchorlib.wire.connection.loading import grpc

__all__ = ["KIND_KEY", "FailureKind", "code_of", "kind_of"]

KIND_KEY: Final = "anchor-kind"


class FailureKind(StrEnum):
    """The kinds of failure; a value is the text by which a collector names the kind to a client.

    None of these texts may ever change, because other versions of anchorlib know them.
    """

    # A collector that refuses for good.
    EXISTS = "exists"  # this rank of the run was recorded before
    BUSY = "busy"  # another process writes this rank
    STORE = "store"  # the stored run is damaged, or was changed
    INVALID = "invalid"  # a message breaks the protocol
    PROTOCOL = "protocol"  # the client speaks another version of the protocol
    TOKEN = "token"  # the token is missing or wrong
    FORBIDDEN = "forbidden"  # the caller has no right to it
    FOREIGN = "foreign"  # the server that answers is no collector of this protocol

    # A collector that refuses just now.
    STOPPING = "stopping"  # it is about to end
    STREAMS = "streams"  # all its streams are taken
    DISK = "disk"  # its disk is full, or fails
    MEMORY = "memory"  # unfinished records of other streams take its memory
    RATE = "rate"  # more bytes a second than it accepts
    RUNS = "runs"  # it has as many runs as are allowed
    INODES = "inodes"  # the run has as many files as are allowed
    READ_ONLY = "read-only"  # it is in maintenance, and changes nothing
    REPLACED = "replaced"  # another stream of the same writer took over
    STALLED = "stalled"  # the next fragment of a record did not come in time
    IDLE = "idle"  # the stream was quiet for long: connect again when there is something to send

    # Failures that a client gives up on if they come again and again.
    DAMAGED = "damaged"  # a message or a value does not fit its checksum
    SEQUENCE = "sequence"  # records are missing before the one that came
    MISSING = "missing"  # there is no such file
    DEFECT = "defect"  # the collector failed, and its log says where

    # Failures that the client itself observes.
    UNREACHABLE = "unreachable"  # nobody answers
    SILENT = "silent"  # an answer that was due did not come
    LINE = "line"  # the connection broke, or carries bytes that make no sense
    HERE = "here"  # this process cannot go on

    @property
    def permanent(self) -> bool:
        """Whether the same call, if tried again, is expected to fail in the same way."""
        return self in _PERMANENT

    @property
    def passing(self) -> bool:
        """Whether the cause may end, so that a client tries again any number of times.

        Kinds that are neither permanent nor passing are tried again a few times.
        """
        return self in _PASSING

    @property
    def remote(self) -> bool:
        """Whether the collector or the network caused the failure, and not this process."""
        return self is not FailureKind.HERE

    @property
    def full(self) -> bool:
        """Whether the collector accepts no records now, so that a client tries again less often."""
        return self in _FULL


_FULL: Final = frozenset(
    {
        FailureKind.STREAMS,
        FailureKind.DISK,
        FailureKind.MEMORY,
        FailureKind.RATE,
        FailureKind.RUNS,
        FailureKind.INODES,
        FailureKind.READ_ONLY,
    }
)
_PERMANENT: Final = frozenset(
    {
        FailureKind.EXISTS,
        FailureKind.BUSY,
        FailureKind.STORE,
        FailureKind.INVALID,
        FailureKind.PROTOCOL,
        FailureKind.TOKEN,
        FailureKind.FORBIDDEN,
        FailureKind.FOREIGN,
        FailureKind.HERE,
    }
)
_PASSING: Final = frozenset(
    {
        FailureKind.STOPPING,
        FailureKind.STREAMS,
        FailureKind.DISK,
        FailureKind.MEMORY,
        FailureKind.RATE,
        FailureKind.RUNS,
        FailureKind.INODES,
        FailureKind.READ_ONLY,
        FailureKind.REPLACED,
        FailureKind.STALLED,
        FailureKind.IDLE,
        FailureKind.UNREACHABLE,
        FailureKind.SILENT,
        FailureKind.LINE,
    }
)

# The gRPC status code that is sent with each kind, for clients that know the codes alone.
_CODES: Final[Mapping[FailureKind, grpc.StatusCode]] = {
    FailureKind.EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    FailureKind.BUSY: grpc.StatusCode.FAILED_PRECONDITION,
    FailureKind.STORE: grpc.StatusCode.FAILED_PRECONDITION,
    FailureKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    FailureKind.PROTOCOL: grpc.StatusCode.FAILED_PRECONDITION,
    FailureKind.TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    FailureKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    FailureKind.STOPPING: grpc.StatusCode.UNAVAILABLE,
    FailureKind.STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.DISK: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.MEMORY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.RATE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.RUNS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.INODES: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.READ_ONLY: grpc.StatusCode.UNAVAILABLE,
    FailureKind.REPLACED: grpc.StatusCode.ABORTED,
    FailureKind.STALLED: grpc.StatusCode.DEADLINE_EXCEEDED,
    FailureKind.IDLE: grpc.StatusCode.ABORTED,
    FailureKind.DAMAGED: grpc.StatusCode.DATA_LOSS,
    FailureKind.SEQUENCE: grpc.StatusCode.OUT_OF_RANGE,
    FailureKind.MISSING: grpc.StatusCode.NOT_FOUND,
    FailureKind.DEFECT: grpc.StatusCode.INTERNAL,
}

_KINDS: Final[Mapping[grpc.StatusCode, FailureKind]] = {
    grpc.StatusCode.ALREADY_EXISTS: FailureKind.EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION: FailureKind.STORE,
    grpc.StatusCode.INVALID_ARGUMENT: FailureKind.INVALID,
    grpc.StatusCode.PERMISSION_DENIED: FailureKind.FORBIDDEN,
    grpc.StatusCode.UNAUTHENTICATED: FailureKind.TOKEN,
    grpc.StatusCode.UNIMPLEMENTED: FailureKind.FOREIGN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: FailureKind.STREAMS,
    grpc.StatusCode.ABORTED: FailureKind.REPLACED,
    grpc.StatusCode.UNAVAILABLE: FailureKind.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: FailureKind.UNREACHABLE,
    grpc.StatusCode.DATA_LOSS: FailureKind.DAMAGED,
    grpc.StatusCode.OUT_OF_RANGE: FailureKind.SEQUENCE,
    grpc.StatusCode.NOT_FOUND: FailureKind.MISSING,
}


def code_of(kind: FailureKind) -> grpc.StatusCode:
    """Return the gRPC status code with which a collector refuses for a reason of this kind."""
    return _CODES[kind]


def kind_of(error: grpc.RpcError) -> FailureKind:
    """Return the kind of a failed call: the kind that the collector states, if it states one.

    Otherwise the kind that the gRPC status code stands for; LINE for a code that stands for none.
    """
    trailing = error.trailing_metadata() or ()
    stated = next((str(one.value) for one in trailing if one.key == KIND_KEY), "")
    # A kind of a later version, or with a flipped bit, is unknown or does not fit the status code.
    if stated in _CODES and _CODES[FailureKind(stated)] is error.code():
        return FailureKind(stated)
    # gRPC reports a broken connection, or bytes that make no sense, with any of the other codes.
    return _KINDS.get(error.code(), FailureKind.LINE)
