"""The collector's three services as gRPC calls (client) and handlers (server).

Messages are received as bytes, and sent sealed, that is, with a checksum at their end. gRPC is
given no deserialiser, so that payloads are read in place, and because gRPC would log a traceback
for each message that is malformed or damaged: anchorlib refuses those itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from anchorlib.wire.connection.loading import grpc
from anchorlib.wire.messages import check_seal, sealed
from anchorlib.wire.v1.collector_pb2 import DESCRIPTOR, PushReply

__all__ = [
    "PushBehaviour",
    "PushCall",
    "ReadCall",
    "keep_call",
    "keeper_handler",
    "parse_reply",
    "push_call",
    "push_handler",
    "read_calls",
    "reader_handler",
]

_SERVICE: Final = DESCRIPTOR.services_by_name["Collector"].full_name
_KEEPER: Final = DESCRIPTOR.services_by_name["Keeper"].full_name
_READER: Final = DESCRIPTOR.services_by_name["Reader"].full_name

PushCall: TypeAlias = "grpc.StreamStreamMultiCallable[bytes, bytes]"
ReadCall: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
PushBehaviour: TypeAlias = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[PushReply]]


def push_call(channel: grpc.Channel) -> PushCall:
    """Return the client's call Push: it sends sealed PushRequests; `parse_reply` reads replies."""
    return channel.stream_stream(
        f"/{_SERVICE}/Push",
        request_serializer=None,
        response_deserializer=None,
    )


def parse_reply(message: bytes) -> PushReply:
    """Parse a reply of the call Push. Raises GarbledError if it does not fit its checksum."""
    check_seal(message)
    return PushReply.FromString(message)


def push_handler(behaviour: PushBehaviour) -> grpc.GenericRpcHandler:
    """Return the server's handler of the call Push.

    behaviour: gets the requests as the bytes that arrived, and yields the replies.
    """
    method: grpc.RpcMethodHandler[bytes, PushReply] = grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=None,
        response_serializer=sealed,
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {"Push": method})


def read_calls(channel: grpc.Channel) -> tuple[ReadCall, ReadCall]:
    """Return the client's calls Get and List of the service Reader; messages are sealed bytes.

    A sealed message ends in its checksum.
    """
    return _read_call(channel, "Get"), _read_call(channel, "List")


def keep_call(channel: grpc.Channel, name: str) -> ReadCall:
    """Return the client's call `name` of the service Keeper, which sends and gets sealed bytes.

    name: such as "Measure". A sealed message ends in its checksum.
    """
    return channel.unary_unary(
        f"/{_KEEPER}/{name}", request_serializer=None, response_deserializer=None
    )


def keeper_handler(
    calls: Mapping[str, Callable[[bytes, grpc.ServicerContext], bytes]],
) -> grpc.GenericRpcHandler:
    """Return the server's handler of the service Keeper.

    calls: for each call's name, a function that gets the request as the bytes that arrived, and
    returns a sealed message.
    """
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=None, response_serializer=None
        )
        for name, call in calls.items()
    }
    return grpc.method_handlers_generic_handler(_KEEPER, methods)


def _read_call(channel: grpc.Channel, name: str) -> ReadCall:
    return channel.unary_unary(
        f"/{_READER}/{name}", request_serializer=None, response_deserializer=None
    )


def reader_handler(
    get: Callable[[bytes, grpc.ServicerContext], bytes],
    list_: Callable[[bytes, grpc.ServicerContext], bytes],
) -> grpc.GenericRpcHandler:
    """Return the server's handler of the service Reader, with its calls Get and List.

    Both functions get the request as the bytes that arrived, and return a sealed message.
    """
    get_method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        get, request_deserializer=None, response_serializer=None
    )
    list_method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        list_, request_deserializer=None, response_serializer=None
    )
    return grpc.method_handlers_generic_handler(_READER, {"Get": get_method, "List": list_method})
