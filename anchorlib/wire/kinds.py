"""The kinds of failure between a collector and those who call it.

A collector says the kind of every refusal in the call's trailing metadata, under `KIND_KEY`. What
is done about a failure follows from its kind; its words are for people alone. A failure without a
kind was made by gRPC itself, by the line, or by another server: its status code says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from anchorlib.wire.loading import grpc

__all__ = ["KIND_KEY", "Kind", "code_of", "kind_of"]

KIND_KEY: Final = "anchor-kind"


class Kind(StrEnum):
    """What a failure is; the values travel, so they stay as they are.

    permanent: the collector refused, and will refuse again.
    passing: it may pass by itself, however often it comes.
    told: the other end, or what seemed to be it, said so.
    full: the collector takes nothing just now.
    """

    # What a collector refuses for good.
    EXISTS = "exists"  # this rank of the run was recorded before
    BUSY = "busy"  # another process writes this rank
    STORE = "store"  # what is stored is not what it should be
    INVALID = "invalid"  # what was said cannot be
    PROTOCOL = "protocol"  # another version of the protocol
    TOKEN = "token"  # the token is missing or wrong  # it is no password
    FORBIDDEN = "forbidden"  # the caller has no right to it
    FOREIGN = "foreign"  # what answers is no collector of this protocol

    # What a collector refuses just now.
    STOPPING = "stopping"  # it is about to end
    STREAMS = "streams"  # all its streams are taken
    DISK = "disk"  # its disk is full, or fails
    MEMORY = "memory"  # unfinished records of others hold its memory
    RATE = "rate"  # more bytes a second than may come
    RUNS = "runs"  # as many runs as there may be
    INODES = "inodes"  # as many files as a run may have
    READ_ONLY = "read-only"  # it is being looked after, and changes nothing
    REPLACED = "replaced"  # another stream of the same writer took over
    STALLED = "stalled"  # nothing was said in the middle of a sentence
    IDLE = "idle"  # nothing was said for a long time: come back when there is something to say

    # What is given up if it comes again and again.
    DAMAGED = "damaged"  # a message or a value does not fit its checksum
    SEQUENCE = "sequence"  # records are missing before the one that came
    MISSING = "missing"  # there is no such file
    DEFECT = "defect"  # the collector failed, and its log says where

    # What this end sees.
    UNREACHABLE = "unreachable"  # nobody answers
    SILENT = "silent"  # an answer that was due did not come
    LINE = "line"  # the connection broke, or made no sense any more
    HERE = "here"  # this end cannot go on

    @property
    def permanent(self) -> bool:
        """Whether it will come again."""
        return self in _PERMANENT

    @property
    def passing(self) -> bool:
        """Whether it may pass by itself, however often it comes."""
        return self in _PASSING

    @property
    def told(self) -> bool:
        """Whether the other end said so."""
        return self is not Kind.HERE

    @property
    def full(self) -> bool:
        """Whether the collector takes nothing just now, however soon one comes again."""
        return self in _FULL


_FULL: Final = frozenset(
    {
        Kind.STREAMS,
        Kind.DISK,
        Kind.MEMORY,
        Kind.RATE,
        Kind.RUNS,
        Kind.INODES,
        Kind.READ_ONLY,
    }
)
_PERMANENT: Final = frozenset(
    {
        Kind.EXISTS,
        Kind.BUSY,
        Kind.STORE,
        Kind.INVALID,
        Kind.PROTOCOL,
        Kind.TOKEN,
        Kind.FORBIDDEN,
        Kind.FOREIGN,
        Kind.HERE,
    }
)
_PASSING: Final = frozenset(
    {
        Kind.STOPPING,
        Kind.STREAMS,
        Kind.DISK,
        Kind.MEMORY,
        Kind.RATE,
        Kind.RUNS,
        Kind.INODES,
        Kind.READ_ONLY,
        Kind.REPLACED,
        Kind.STALLED,
        Kind.IDLE,
        Kind.UNREACHABLE,
        Kind.SILENT,
        Kind.LINE,
    }
)

# The code that travels beside the kind, for clients that know codes alone.
_CODES: Final[Mapping[Kind, grpc.StatusCode]] = {
    Kind.EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Kind.BUSY: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.STORE: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Kind.PROTOCOL: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Kind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Kind.STOPPING: grpc.StatusCode.UNAVAILABLE,
    Kind.STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.DISK: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.MEMORY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.RATE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.RUNS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.INODES: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.READ_ONLY: grpc.StatusCode.UNAVAILABLE,
    Kind.REPLACED: grpc.StatusCode.ABORTED,
    Kind.STALLED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Kind.IDLE: grpc.StatusCode.ABORTED,
    Kind.DAMAGED: grpc.StatusCode.DATA_LOSS,
    Kind.SEQUENCE: grpc.StatusCode.OUT_OF_RANGE,
    Kind.MISSING: grpc.StatusCode.NOT_FOUND,
    Kind.DEFECT: grpc.StatusCode.INTERNAL,
}

_KINDS: Final[Mapping[grpc.StatusCode, Kind]] = {
    grpc.StatusCode.ALREADY_EXISTS: Kind.EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION: Kind.STORE,
    grpc.StatusCode.INVALID_ARGUMENT: Kind.INVALID,
    grpc.StatusCode.PERMISSION_DENIED: Kind.FORBIDDEN,
    grpc.StatusCode.UNAUTHENTICATED: Kind.TOKEN,
    grpc.StatusCode.UNIMPLEMENTED: Kind.FOREIGN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Kind.STREAMS,
    grpc.StatusCode.ABORTED: Kind.REPLACED,
    grpc.StatusCode.UNAVAILABLE: Kind.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Kind.UNREACHABLE,
    grpc.StatusCode.DATA_LOSS: Kind.DAMAGED,
    grpc.StatusCode.OUT_OF_RANGE: Kind.SEQUENCE,
    grpc.StatusCode.NOT_FOUND: Kind.MISSING,
}


def code_of(kind: Kind) -> grpc.StatusCode:
    """The status code of a refusal of this kind."""
    return _CODES[kind]


def kind_of(error: grpc.RpcError) -> Kind:
    """The kind of a failed call."""
    trailing = error.trailing_metadata() or ()
    told = next((str(one.value) for one in trailing if one.key == KIND_KEY), "")
    # One of a later version, or one in which a bit flipped, does not count.
    if told in _CODES and _CODES[Kind(told)] is error.code():
        return Kind(told)
    # Whatever gRPC makes of a broken connection or of bytes that make no sense has another code.
    return _KINDS.get(error.code(), Kind.LINE)
