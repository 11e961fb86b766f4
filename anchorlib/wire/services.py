"""The services as both ends see them: bytes on the way in.

Frames are read and written in place; and what is no message is for the collector to refuse: gRPC
itself would log a traceback for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import grpc

from anchorlib.wire.v1.collector_pb2 import (
    DESCRIPTOR,
    GetReply,
    ListReply,
    PushReply,
)

__all__ = ["PushBehaviour", "PushCall", "push_call", "push_handler", "reader_handler"]

_SERVICE: Final = DESCRIPTOR.services_by_name["Collector"].full_name
_READER: Final = DESCRIPTOR.services_by_name["Reader"].full_name

PushCall: TypeAlias = "grpc.StreamStreamMultiCallable[bytes, PushReply]"
PushBehaviour: TypeAlias = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[PushReply]]


def push_call(channel: grpc.Channel) -> PushCall:
    """Calls Push; requests are serialised PushRequests."""
    return channel.stream_stream(
        f"/{_SERVICE}/Push",
        request_serializer=None,
        response_deserializer=PushReply.FromString,
    )


def push_handler(behaviour: PushBehaviour) -> grpc.GenericRpcHandler:
    """Serves Push; requests are serialised PushRequests."""
    method: grpc.RpcMethodHandler[bytes, PushReply] = grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=None,
        response_serializer=PushReply.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {"Push": method})


def reader_handler(
    get: Callable[[bytes, grpc.ServicerContext], GetReply],
    list_: Callable[[bytes, grpc.ServicerContext], ListReply],
) -> grpc.GenericRpcHandler:
    """Serves Get and List; requests are serialised messages."""
    get_method: grpc.RpcMethodHandler[bytes, GetReply] = grpc.unary_unary_rpc_method_handler(
        get, request_deserializer=None, response_serializer=GetReply.SerializeToString
    )
    list_method: grpc.RpcMethodHandler[bytes, ListReply] = grpc.unary_unary_rpc_method_handler(
        list_, request_deserializer=None, response_serializer=ListReply.SerializeToString
    )
    return grpc.method_handlers_generic_handler(_READER, {"Get": get_method, "List": list_method})
